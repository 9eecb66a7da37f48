package report

import (
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

func TestOutputOptionsAreCheckedFirst(t *testing.T) {
	for want, o := range map[string]Output{
		"":                       {File: filepath.Join(t.TempDir(), "new")},
		"-record: stat /nowhere": {File: "/nowhere/start.txt"},
		"is not a directory":     {File: "/dev/null/start.txt"},
	} {
		if err := o.Check(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}
