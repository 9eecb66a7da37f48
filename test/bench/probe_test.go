package main

import (
	"errors"
	"testing"
)

func TestMetric(t *testing.T) {
	page := []byte("# HELP go_goroutines x\ngo_goroutines_total 4\ngo_goroutines 1.5e+03\n")
	if v, err := metric(page, "go_goroutines"); v != 1500 || err != nil {
		t.Errorf("metric = %v, %v, want 1500", v, err)
	}
	if _, err := metric(page, "go_threads"); !errors.Is(err, errNoMetric) {
		t.Errorf("missing metric: %v, want %v", err, errNoMetric)
	}
}
