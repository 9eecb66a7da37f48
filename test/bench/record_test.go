package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/perf/benchfmt"

	"github.com/karve-k8s/karve/test/bench/report"
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
	cmp.Output = report.Output{File: filepath.Join(t.TempDir(), "api.txt")}
	if err := cmp.Check(); err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	if err := cmp.Write(&printed, cmp); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(printed.String(), "ratio") {
		t.Errorf("printed\n%s\nwant the table", &printed)
	}
	values := readRecord(t, cmp.File)
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

// Every line of every comparison has a unit that Go's benchmark format has a name for.
func TestEveryLineCanBeRecorded(t *testing.T) {
	lines := slices.Concat(apiLines(), startLines, footprintLines, freshLines(), storageLines())
	cmp := &comparison{name: "api", peers: twoPeers().peers}
	s := &sample{Peer: "karve", Round: 1}
	for _, l := range lines {
		s.add(l.row, l.unit, 1)
	}
	cmp.Samples = []*sample{s}
	var text strings.Builder
	if err := cmp.Record().Write(&text); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(text.String(), "\nBenchmarkAPI/"); n < len(apiLines())/5 {
		t.Errorf("the record has %d results\n%s", n, &text)
	}
}
