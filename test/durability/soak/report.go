package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/karve-k8s/karve/test/bench/load"
	"github.com/karve-k8s/karve/test/bench/report"
)

// A result is what a soak has found.
type result struct {
	Failure      string             `json:"failure,omitempty"`
	Hours        float64            `json:"hours"`
	Processors   int                `json:"processors"`
	Rate         float64            `json:"rate"`
	CompactEvery string             `json:"compactEvery"`
	WarmUp       string             `json:"warmUp"`
	Nodes        int                `json:"nodes"`
	Acknowledged int                `json:"acknowledged"`
	Lives        []life             `json:"lives"`
	Counts       map[string]int     `json:"counts"`
	Watches      map[string]int     `json:"watches"`
	Log          map[string]int     `json:"log"`
	Latency      map[string]figures `json:"latency"`
	Rows         []row              `json:"rows"`
	Samples      []sample           `json:"samples"`
	LongestLife  int                `json:"longestLife"`
}

type figures struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50"` // ms, as the others
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// A row is one figure over the whole soak. Slopes are per hour, and nil with too few samples.
type row struct {
	Name    string   `json:"name"`
	Unit    string   `json:"unit"`
	Min     float64  `json:"min"`
	Median  float64  `json:"median"`
	Max     float64  `json:"max"`
	All     *float64 `json:"perHour"`            // over all samples after the warm-up
	Within  *float64 `json:"perHourWithinLives"` // with a level for each life
	Longest *float64 `json:"perHourLongestLife"`
}

// logLines are counted in the server's log.
var logLines = []string{"panic", "datastore is closed", "required revision has been compacted", "watch chan error"}

func (s *soak) report(log *os.File) (*result, error) {
	text, err := os.ReadFile(log.Name())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.seen
	r := &result{
		Hours: time.Since(s.began).Hours(), Processors: runtime.NumCPU(), Rate: s.rate, CompactEvery: s.compact.String(), WarmUp: s.warmUp.String(), Nodes: s.nodes,
		Acknowledged: s.journal.Acks(), Lives: s.lives, Counts: s.counts, Samples: s.samples, Log: map[string]int{}, Latency: map[string]figures{},
		Watches: map[string]int{
			"watches": len(watched()), "events": w.events, "bookmarks": w.bookmarks, "ended by the server": w.ends, "broken": w.failures,
			"relists": w.relists, "relists after a restart": w.afterRestart,
		},
	}
	for _, line := range logLines {
		r.Log[line] = strings.Count(string(text), line)
	}
	for what, took := range s.times.all {
		slices.Sort(took)
		r.Latency[what] = figures{len(took), load.Milliseconds(load.Quantile(took, 0.5)), load.Milliseconds(load.Quantile(took, 0.99)), load.Milliseconds(took[len(took)-1])}
	}
	for i, l := range r.Lives {
		if longest := r.Lives[r.LongestLife]; l.Ended-l.Began > longest.Ended-longest.Began {
			r.LongestLife = i
		}
	}
	r.Rows = rows(s.samples, s.warmUp, r.LongestLife)
	return r, nil
}

// rows summarises the samples, without those in the warm-up of a life.
func rows(samples []sample, warmUp time.Duration, longest int) []row {
	var all []row
	for _, c := range columns {
		var values []float64
		var whole, within, one []point
		for _, s := range samples {
			if s.InLife < warmUp.Seconds() {
				continue
			}
			hours, value := s.Seconds/3600, s.Figures[c.name]
			values = append(values, value)
			whole = append(whole, point{0, hours, value})
			within = append(within, point{s.Life, hours, value})
			if s.Life == longest {
				one = append(one, point{0, hours, value})
			}
		}
		if len(values) == 0 {
			continue
		}
		slices.Sort(values)
		r := row{Name: c.name, Unit: c.unit, Min: values[0], Median: values[len(values)/2], Max: values[len(values)-1]}
		for _, fit := range []struct {
			points []point
			into   **float64
		}{{whole, &r.All}, {within, &r.Within}, {one, &r.Longest}} {
			if perHour, ok := slope(fit.points); ok {
				*fit.into = &perHour
			}
		}
		all = append(all, r)
	}
	return all
}

// keep writes the report to a file, as JSON.
func (r *result) keep(file string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// write prints the report.
func (r *result) write(w io.Writer) error {
	fmt.Fprintf(w, "%.2f hours on %d processors; %.0f writes/s, %d simulated nodes, compaction every %s\n", r.Hours, r.Processors, r.Rate, r.Nodes, r.CompactEvery)
	verdict := "none lost"
	if r.Failure != "" {
		verdict = "FAILED: see the error"
	}
	fmt.Fprintf(w, "%d writes acknowledged, %s; %d lives, each ended by kill -9\n\n", r.Acknowledged, verdict, len(r.Lives))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "after %s of each life\tmin\tmedian\tmax\tper hour\tper hour within lives\tper hour in life %d\t\n", r.WarmUp, r.LongestLife+1)
	for _, row := range r.Rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", strings.TrimSpace(row.Name+" "+row.Unit), report.Number(row.Min), report.Number(row.Median), report.Number(row.Max), signed(row.All), signed(row.Within), signed(row.Longest))
	}
	fmt.Fprint(t, "\nrequests\tnumber\tp50 ms\tp99 ms\tmax ms\t\n")
	for _, what := range slices.Sorted(maps.Keys(r.Latency)) {
		f := r.Latency[what]
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t\n", what, f.N, report.Number(f.P50), report.Number(f.P99), report.Number(f.Max))
	}
	fmt.Fprintln(t)
	for _, counts := range []struct {
		title string
		of    map[string]int
	}{{"log: ", r.Log}, {"watches: ", r.Watches}, {"", failures(r.Counts)}} {
		for _, what := range slices.Sorted(maps.Keys(counts.of)) {
			fmt.Fprintf(t, "%s%s\t%d\t\n", counts.title, what, counts.of[what])
		}
	}
	fmt.Fprint(t, "\nlife\tbegan s\tstart s\tended s\twrites\t\n")
	for i, l := range r.Lives {
		fmt.Fprintf(t, "%d\t%.0f\t%.2f\t%.0f\t%d\t\n", i+1, l.Began, l.Start, l.Ended, l.Writes)
	}
	return t.Flush()
}

// failures are the counts of failed requests.
func failures(counts map[string]int) map[string]int {
	failed := map[string]int{}
	for what, n := range counts {
		if strings.Contains(what, ": ") {
			failed[what] = n
		}
	}
	return failed
}

func signed(v *float64) string {
	switch {
	case v == nil:
		return "–"
	case *v >= 0:
		return "+" + report.Number(*v)
	default:
		return "-" + report.Number(-*v)
	}
}
