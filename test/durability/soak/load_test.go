package main

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"
)

func TestSlope(t *testing.T) {
	for name, c := range map[string]struct {
		points []point
		want   float64
		none   bool
	}{
		"a line":                           {points: []point{{0, 0, 5}, {0, 1, 7}, {0, 2, 9}}, want: 2},
		"noise around a line":              {points: []point{{0, 0, 1}, {0, 1, 0}, {0, 2, 3}, {0, 3, 2}}, want: 0.6},
		"lives with levels of their own":   {points: []point{{0, 0, 5}, {0, 1, 6}, {1, 2, 100}, {1, 3, 101}}, want: 1},
		"a level that grows between lives": {points: []point{{0, 0, 5}, {0, 1, 5}, {1, 2, 100}, {1, 3, 100}}, want: 0},
		"nothing":                          {none: true},
		"a single point":                   {points: []point{{0, 3, 5}}, none: true},
		"one point in each life":           {points: []point{{0, 3, 5}, {1, 4, 6}}, none: true},
	} {
		got, ok := slope(c.points)
		if ok == c.none || math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: got %v, %v, want %v, %v", name, got, ok, c.want, !c.none)
		}
	}
}

// The warm-up of each life counts for no slope, and the longest life has its own.
func TestRows(t *testing.T) {
	var samples []sample
	for life, level := range []float64{100, 200} {
		for minute := range 30 {
			value := level + float64(minute) // 60 an hour
			if minute < 5 {
				value = 1000 // the start
			}
			samples = append(samples, sample{
				Seconds: float64(life*1800 + minute*60), InLife: float64(minute * 60), Life: life,
				Figures: map[string]float64{"RSS": value},
			})
		}
	}
	got := rows(samples, 5*time.Minute, 1)
	if len(got) != len(columns) || got[0].Name != "RSS" {
		t.Fatalf("got %d rows, the first %+v; want %d, the first RSS", len(got), got[0], len(columns))
	}
	r := got[0]
	if r.Min != 105 || r.Max != 229 {
		t.Errorf("got %v to %v, want 105 to 229: without the warm-ups", r.Min, r.Max)
	}
	if math.Abs(*r.Within-60) > 1e-9 || math.Abs(*r.Longest-60) > 1e-9 {
		t.Errorf("got %v within lives and %v in the longest, want 60", *r.Within, *r.Longest)
	}
	if *r.All < 150 {
		t.Errorf("got %v over all, want what the level gains from life to life too", *r.All)
	}
	if got := rows(samples, time.Hour, 1); got != nil {
		t.Errorf("got %v after a warm-up that is longer than the lives, want nothing", got)
	}
}

// The report of a failed soak says that it failed.
func TestReport(t *testing.T) {
	r := &report{
		Failure: "acknowledged data is missing", Acknowledged: 7, Lives: []life{{Ended: 60}}, Latency: map[string]figures{"create": {7, 1, 2, 3}},
		Counts: map[string]int{"create": 7, "failed: create": 2}, Log: map[string]int{"watch chan error": 3},
		Rows: rows([]sample{{Seconds: 1, InLife: 1, Figures: map[string]float64{}}}, 0, 0),
	}
	var table bytes.Buffer
	if err := r.write(&table); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(table.String(), "none lost") || !strings.Contains(table.String(), "FAILED") {
		t.Errorf("the table does not say that the run failed:\n%s", &table)
	}
	for _, want := range []string{"failed: create", "watch chan error", "goroutines"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table has no %q:\n%s", want, &table)
		}
	}
}
