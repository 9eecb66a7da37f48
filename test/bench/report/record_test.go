package report

import (
	"bytes"
	"io"
	"math"
	"strings"
	"testing"

	"golang.org/x/perf/benchfmt"
)

// recorded writes a record and reads it as benchstat does.
func recorded(t *testing.T, r *Record) (text string, results []*benchfmt.Result, reader *benchfmt.Reader) {
	t.Helper()
	var out bytes.Buffer
	if err := r.Write(&out); err != nil {
		t.Fatal(err)
	}
	text = out.String()
	reader = benchfmt.NewReader(&out, "record")
	for reader.Scan() {
		switch one := reader.Result().(type) {
		case *benchfmt.Result:
			results = append(results, one.Clone())
		case *benchfmt.SyntaxError:
			t.Errorf("benchstat does not understand the record: %v\n%s", one, text)
		}
	}
	if err := reader.Err(); err != nil {
		t.Fatal(err)
	}
	return text, results, reader
}

func TestRecordIsReadByBenchstat(t *testing.T) {
	r := &Record{Benchmark: "API", CPU: "A Processor"}
	r.Remark("date", "2026-11-22")
	r.Remark("disturbed", "")
	for round := range 2 {
		r.Add("create, 32 clients", "karve", 1500+float64(round), "/s")
		r.Add("create, 32 clients", "karve", 12.5, "p50 ms")
		r.Add("update → watch event", "etcd + kube-apiserver", 250, "server µs each")
		r.Add("memory", "karve", 80, "MB")
	}
	text, results, reader := recorded(t, r)
	if !strings.HasPrefix(text, "# date: 2026-11-22\ngoos: ") {
		t.Errorf("the record begins with\n%s\nwant its one remark", text)
	}
	want := []struct {
		name, unit string
		value      float64
	}{
		{"API/create-32-clients/peer=karve", "op/sec", 1500},
		{"API/update-watch-event/peer=etcd-kube-apiserver", "server-CPU-sec/op", 250e-6},
		{"API/memory/peer=karve", "B", 80e6},
		{"API/create-32-clients/peer=karve", "op/sec", 1501},
	}
	if len(results) != 6 {
		t.Fatalf("got %d results, want 6: two rounds of three rows\n%s", len(results), text)
	}
	for i, w := range want {
		value, ok := results[i].Value(w.unit)
		if string(results[i].Name) != w.name || !ok || math.Abs(value-w.value) > 1e-9 {
			t.Errorf("result %d is %s with %v, want %s with %v %s", i, results[i].Name, results[i].Values, w.name, w.value, w.unit)
		}
	}
	if p50, ok := results[0].Value("p50-sec"); !ok || p50 != 0.0125 {
		t.Errorf("p50 is %v, %v, want 0.0125 s in the line of the same row", p50, ok)
	}
	if cpu := results[0].GetConfig("cpu"); cpu != "A Processor" {
		t.Errorf("cpu is %q, want the processor", cpu)
	}
	if results[0].GetConfig("date") != "" {
		t.Error("a remark is configuration: benchstat would not compare runs of two days")
	}
	if better := reader.Units().GetBetter("op/sec"); better != 1 {
		t.Errorf("better of op/sec is %d, want 1: higher", better)
	}
	if better := reader.Units().GetBetter("B"); better == 1 {
		t.Error("more memory is better")
	}
}

func TestRecordRefusesUnknownUnits(t *testing.T) {
	r := &Record{Benchmark: "Start"}
	r.Add("cold", "karve", 1, "furlongs")
	if err := r.Write(io.Discard); err == nil || !strings.Contains(err.Error(), `cold: the unit "furlongs"`) {
		t.Errorf("got %v, want an error that names the row and the unit", err)
	}
}

// A name that ended with a number would be read as one with GOMAXPROCS.
func TestRecordNamesEndWithThePeer(t *testing.T) {
	r := &Record{Benchmark: "Scale"}
	r.Add("page of 500", "karve", 1, "s")
	if _, results, _ := recorded(t, r); string(results[0].Name) != "Scale/page-of-500/peer=karve" {
		t.Errorf("the name is %s", results[0].Name)
	}
}
