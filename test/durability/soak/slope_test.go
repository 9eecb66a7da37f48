package main

import (
	"math"
	"testing"
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
