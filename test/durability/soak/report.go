package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// logLines are counted in the server's log.
var logLines = []string{"panic", "datastore is closed", "required revision has been compacted", "watch chan error"}

// report prints what the soak has found.
func (s *soak) report(w io.Writer, log *os.File) error {
	text, err := os.ReadFile(log.Name())
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(w, "%.2f hours\n\n", time.Since(s.began).Hours())
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "after %s\tmin\tmedian\tmax\tper hour\t\n", s.warmUp)
	for _, c := range columns {
		var values []float64
		var points [][2]float64
		for _, one := range s.samples {
			if one.at >= s.warmUp {
				values = append(values, one.figures[c.name])
				points = append(points, [2]float64{one.at.Hours(), one.figures[c.name]})
			}
		}
		if len(values) > 1 {
			slices.Sort(values)
			fmt.Fprintf(t, "%s\t%.4g\t%.4g\t%.4g\t%+.3g\t\n", strings.TrimSpace(c.name+" "+c.unit),
				values[0], values[len(values)/2], values[len(values)-1], slope(points))
		}
	}
	fmt.Fprintln(t)
	for _, line := range logLines {
		fmt.Fprintf(t, "log: %s\t%d\t\n", line, strings.Count(string(text), line))
	}
	for _, what := range slices.Sorted(maps.Keys(s.counts)) {
		fmt.Fprintf(t, "%s\t%d\t\n", what, s.counts[what])
	}
	return t.Flush()
}

// slope is the least-squares slope of points with at least two different x.
func slope(points [][2]float64) float64 {
	var x, y, xx, xy float64
	for _, p := range points {
		x, y = x+p[0]/float64(len(points)), y+p[1]/float64(len(points))
	}
	for _, p := range points {
		xx, xy = xx+(p[0]-x)*(p[0]-x), xy+(p[0]-x)*(p[1]-y)
	}
	return xy / xx
}
