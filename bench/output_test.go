package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/perf/benchfmt"
)

// readRecord reads a file as benchstat does: values by name and unit.
func readRecord(t *testing.T, file string) map[string]float64 {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	values := map[string]float64{}
	reader := benchfmt.NewReader(f, file)
	for reader.Scan() {
		switch one := reader.Result().(type) {
		case *benchfmt.Result:
			for _, v := range one.Values {
				values[string(one.Name)+" "+v.Unit] = v.Value
			}
		case *benchfmt.SyntaxError:
			t.Error(one)
		}
	}
	return values
}

func TestOutputRecordsBesideTheTable(t *testing.T) {
	cmp := twoPeers()
	cmp.output = output{format: "table", file: filepath.Join(t.TempDir(), "api.txt")}
	if err := cmp.check(); err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	if err := cmp.write(&printed, cmp); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(printed.String(), "ratio") {
		t.Errorf("printed\n%s\nwant the table", &printed)
	}
	values := readRecord(t, cmp.file)
	for name, want := range map[string]float64{
		"API/create/peer=etcd-kube-apiserver op/sec":  2000, // of the last round
		"API/create/peer=karve op/sec":                3000,
		"API/create/peer=karve p99-sec":               0.004,
		"API/memory/peer=etcd-kube-apiserver B":       180e6, // of both processes
		"API/memory/peer=karve B":                     91e6,
		"API/pods/peer=karve p50-sec":                 0.05,
		"API/not-measured/peer=karve sec/op":          0,
		"API/pods/peer=etcd-kube-apiserver p50-sec":   0,
		"API/memory/peer=etcd-kube-apiserver p50-sec": 0,
	} {
		if got := values[name]; got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}

func TestOutputFormats(t *testing.T) {
	for format, want := range map[string]string{"table": "create", "json": `"samples": [`, "bench": "\nBenchmarkAPI/create/peer=karve 1 1500 op/sec 0.004 p99-sec\n"} {
		cmp := twoPeers()
		cmp.output = output{format: format}
		var printed strings.Builder
		if err := cmp.write(&printed, cmp); err != nil || !strings.Contains(printed.String(), want) {
			t.Errorf("%s: %v, printed\n%s\nwant %q", format, err, &printed, want)
		}
	}
}

func TestOutputOptionsAreCheckedFirst(t *testing.T) {
	for want, o := range map[string]output{
		"":                       {format: "bench", file: filepath.Join(t.TempDir(), "new")},
		`-o is "xml"`:            {format: "xml"},
		"-record: stat /nowhere": {format: "table", file: "/nowhere/start.txt"},
		"is not a directory":     {format: "table", file: "/dev/null/start.txt"},
	} {
		if err := o.check(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}

// Every line of every comparison has a unit that Go's benchmark format has a name for.
func TestEveryLineCanBeRecorded(t *testing.T) {
	lines := append(append(apiLines(), startLines...), footprintLines...)
	lines = append(lines, line{row: rowPeakRSS, unit: "MB"}, line{row: abandonedRows[0].row, unit: "CPU s"})
	cmp := &comparison{name: "api", peers: twoPeers().peers}
	s := &sample{Peer: "karve", Round: 1}
	for _, l := range lines {
		s.add(l.row, l.unit, 1)
	}
	cmp.Samples = []*sample{s}
	var text strings.Builder
	if err := cmp.record().Write(&text); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(text.String(), "\nBenchmarkAPI/"); n < len(apiLines())/5 {
		t.Errorf("the record has %d results\n%s", n, &text)
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
	r := &lineReport{figures: newRecord("scale", "a machine", nil, 0.5)}
	r.figures.Add("count", "karve", 2, "p50 us")
	text, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(text), `"row":"count"`) || !strings.Contains(string(text), "other processes used up to 50 %") {
		t.Errorf("got %s, %v, want the figure and a remark on the load", text, err)
	}
}
