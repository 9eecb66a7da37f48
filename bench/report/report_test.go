package report

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		1234567: "1,234,567", 1000: "1,000", 999.4: "999", 12.34: "12.3", 1.234: "1.23", 0.1234: "0.123", 0.0012: "0.00120", 0: "0",
	} {
		if got := Number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestTargetMark(t *testing.T) {
	two, zero := 2.0, 0.0
	for _, test := range []struct {
		target Target
		own    float64
		peer   *float64
		text   string
		mark   string
	}{
		{AtMost(0.6), 0.59, nil, "≤ 0.6", "met"},
		{AtMost(0.6), 0.6, nil, "≤ 0.6", "met"},
		{AtMost(0.6), 0.61, &two, "≤ 0.6", "MISSED"},
		{RatioAtLeast(1.3), 2.6, &two, "≥ 1.3 ×", "met"},
		{RatioAtLeast(1.3), 2.5, &two, "≥ 1.3 ×", "MISSED"},
		{RatioAtMost(1), 2, &two, "≤ 1 ×", "met"},
		{RatioAtMost(1), 2.1, &two, "≤ 1 ×", "MISSED"},
		{RatioAtLeast(1.3), 2.5, nil, "≥ 1.3 ×", ""},
		{RatioAtLeast(1.3), 2.5, &zero, "≥ 1.3 ×", ""},
		{Target{}, 1, &two, "", ""},
	} {
		if got := test.target.String(); got != test.text {
			t.Errorf("%+v is printed %q, want %q", test.target, got, test.text)
		}
		if got := test.target.Mark(test.own, test.peer); got != test.mark {
			t.Errorf("%v of %v, peer %v: %q, want %q", test.own, test.target, test.peer, got, test.mark)
		}
	}
}

func TestOutputOptionsAreCheckedFirst(t *testing.T) {
	for want, o := range map[string]Output{
		"":                       {Format: "bench", File: filepath.Join(t.TempDir(), "new")},
		`-o is "xml"`:            {Format: "xml"},
		"-record: stat /nowhere": {Format: "table", File: "/nowhere/start.txt"},
		"is not a directory":     {Format: "table", File: "/dev/null/start.txt"},
	} {
		if err := o.Check(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}

func TestRecordedCommandHasNoPaths(t *testing.T) {
	for args, want := range map[string]string{
		"-rounds 3 -record /home/me/start.txt": "-rounds 3",
		"--karve=/tmp/karve -only cold":        "-only cold",
		"-dir":                                 "",
		"":                                     "",
	} {
		if got := strings.Join(withoutPaths(strings.Fields(args)), " "); got != want {
			t.Errorf("%q became %q, want %q", args, got, want)
		}
	}
}

func TestLineReportIsJSON(t *testing.T) {
	r := &LineReport{Figures: NewRecord("scale", "a machine", nil, 0.5)}
	r.Figures.Add("count", "karve", 2, "p50 us")
	text, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(text), `"row":"count"`) || !strings.Contains(string(text), "other processes used up to 50 %") {
		t.Errorf("got %s, %v, want the figure and a remark on the load", text, err)
	}
}
