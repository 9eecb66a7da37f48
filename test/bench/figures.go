package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"golang.org/x/perf/benchunit"

	"github.com/karve-k8s/karve/test/bench/machine"
)

// Units of Go's benchmark format (https://go.dev/design/14313-benchmark-format), which benchstat reads.
const (
	perOp     = "sec/op"
	cpuPerOp  = "CPU-sec/op"
	perSecond = "op/sec"
	p50       = "p50-sec"
	p99       = "p99-sec"
	serverCPU = "server-CPU-sec/op"
	clientCPU = "client-CPU-sec/op"
	bytesOf   = "B"
	cores     = "cores"
)

// quiet is the part of the machine that other processes may use without a remark.
const quiet = 0.10

// A figure is what one round measured of one row.
type figure struct {
	row, unit string
	amount    float64 // of all processes of the peer
}

// A sample is what one round measured of one peer.
type sample struct {
	peer    *peer
	round   int
	figures []figure
	// otherLoad is the part of the machine that other processes used.
	otherLoad float64
	log       io.Writer
}

// add adds a figure, and prints it.
func (s *sample) add(row, unit string, parts ...float64) {
	f := figure{row, unit, sum(parts)}
	s.figures = append(s.figures, f)
	fmt.Fprintf(s.log, "round %d  %-22s %-45s %8s %s\n", s.round, s.peer.title, row, scaled(f.amount), unit)
}

func scaled(v float64) string { return benchunit.Scale(v, benchunit.Decimal) }

func sum(values []float64) (total float64) {
	for _, v := range values {
		total += v
	}
	return total
}

// median is the median of a row in all rounds of a peer. ok is false if it was not measured.
func (cmp *comparison) median(p *peer, row, unit string) (m float64, ok bool) {
	var all []float64
	for _, s := range cmp.samples {
		for _, f := range s.figures {
			if s.peer == p && f.row == row && f.unit == unit {
				all = append(all, f.amount)
			}
		}
	}
	if all == nil {
		return 0, false
	}
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2, true
}

// print prints the medians: a column for each peer, and of two peers the ratio of the second to the first.
func (cmp *comparison) print() {
	fmt.Fprintf(cmp.stdout, "%s\n%s; medians of %d round(s)\n\n", cmp.machine, cmp.setting, cmp.rounds)
	t := tabwriter.NewWriter(cmp.stdout, 0, 0, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprint(t, "\t")
	for _, p := range cmp.peers {
		fmt.Fprintf(t, "\t%s", p.title)
	}
	if len(cmp.peers) == 2 {
		fmt.Fprint(t, "\tratio")
	}
	printed := map[[2]string]bool{}
	for _, s := range cmp.samples {
		for _, f := range s.figures {
			if key := [2]string{f.row, f.unit}; !printed[key] {
				printed[key] = true
				fmt.Fprintf(t, "\n%s\t%s%s", f.row, f.unit, cmp.cells(f.row, f.unit))
			}
		}
	}
	fmt.Fprintln(t)
	if most := cmp.otherLoad(); most > quiet {
		fmt.Fprintf(t, "\nDISTURBED: other processes used up to %.0f %% of the machine. Compare only ratios and CPU time.\n", 100*most)
	}
	if cmp.notes != "" {
		fmt.Fprintf(t, "\n%s", cmp.notes)
	}
}

// cells are the figures of a row, each after a tab.
func (cmp *comparison) cells(row, unit string) (cells string) {
	var medians []float64
	for _, p := range cmp.peers {
		m, ok := cmp.median(p, row, unit)
		if !ok {
			cells += "\t–"
			continue
		}
		medians = append(medians, m)
		cells += "\t" + scaled(m)
	}
	if len(cmp.peers) == 2 && len(medians) == 2 && medians[0] > 0 {
		cells += fmt.Sprintf("\t%.2f", medians[1]/medians[0])
	}
	return cells
}

// otherLoad is the largest part of the machine that was busy with something else.
func (cmp *comparison) otherLoad() (most float64) {
	for _, s := range cmp.samples {
		most = max(most, s.otherLoad)
	}
	return most
}

// writeRecord writes every figure for benchstat. What varies between runs is in remarks, because benchstat
// compares only equal configurations.
func (cmp *comparison) writeRecord() error {
	var text strings.Builder
	remark := func(key, what string) {
		if what != "" {
			fmt.Fprintf(&text, "# %s: %s\n", key, what)
		}
	}
	remark("command", strings.Join(append([]string{"scripts/bench", cmp.name}, cmp.args...), " "))
	remark("date", time.Now().UTC().Format(time.DateOnly))
	remark("machine", cmp.machine)
	if most := cmp.otherLoad(); most > quiet {
		remark("disturbed", fmt.Sprintf("other processes used up to %.0f %% of the machine", 100*most))
	}
	remark("setting", cmp.setting)
	for _, p := range cmp.peers {
		remark(p.name, p.version)
	}
	fmt.Fprintf(&text, "goos: %s\ngoarch: %s\npkg: github.com/karve-k8s/karve/bench\ncpu: %s\nUnit op/sec better=higher", runtime.GOOS, runtime.GOARCH, machine.Processor())
	for _, s := range cmp.samples {
		row := ""
		for _, f := range s.figures {
			if f.row != row {
				row = f.row
				fmt.Fprintf(&text, "\nBenchmark%s/%s/peer=%s 1", strings.ToUpper(cmp.name[:1])+cmp.name[1:], slug(row), s.peer.name)
			}
			fmt.Fprintf(&text, " %s %s", strconv.FormatFloat(f.amount, 'g', 6, 64), f.unit)
		}
	}
	text.WriteByte('\n')
	if err := os.WriteFile(cmp.record, []byte(text.String()), 0o644); err != nil {
		return fmt.Errorf("-record: %w", err)
	}
	return nil
}

// slug makes a name of a row: letters and digits, and a hyphen for what is between them.
func slug(row string) string {
	return strings.Join(strings.FieldsFunc(row, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }), "-")
}
