package main

import (
	"fmt"
	"strconv"

	"github.com/karve-k8s/karve/test/bench/report"
)

// A line is one line of the table.
type line struct {
	row, unit string
	// controllers says that only a control plane with controllers can do it.
	controllers bool
}

// A figure is what one round measured of one line.
type figure struct {
	Row    string
	Unit   string
	Amount float64 // of all processes of the peer
}

// A sample is what one round measured of one peer.
type sample struct {
	Peer    string
	Round   int
	Figures []figure
	// OtherLoad is the part of the machine that other processes used.
	OtherLoad float64
}

func (s *sample) add(row, unit string, parts ...float64) {
	s.Figures = append(s.Figures, figure{row, unit, sum(parts)})
}

// values are a line's figures in all rounds of a peer.
func values(samples []*sample, peer, row, unit string) (all []float64) {
	for _, s := range samples {
		for _, f := range s.Figures {
			if s.Peer == peer && f.Row == row && f.Unit == unit {
				all = append(all, f.Amount)
			}
		}
	}
	return all
}

// print prints the medians as a table: a column for each peer, of which Karve is the last, the
// ratio of Karve's figure to the first peer's.
func (cmp *comparison) print() {
	w := cmp.stdout
	t := report.Table{{"", ""}}
	for _, p := range cmp.peers {
		t[0] = append(t[0], p.title)
	}
	ratio := ""
	if len(cmp.peers) > 1 && cmp.datastores == nil {
		t[0] = append(t[0], "ratio")
		ratio = "; ratio: karve / " + cmp.peers[0].title
	}
	last := ""
	for _, l := range cmp.lines {
		if cells := cmp.cells(l); cells != nil {
			if l.row == last {
				cells[0] = ""
			}
			last = l.row
			t = append(t, cells)
		}
	}

	fmt.Fprintf(w, "%s\n%s; medians of %d round(s)%s\n\n", cmp.Machine, cmp.Setting, cmp.Rounds, ratio)
	t.Print(w)
	if most := cmp.otherLoad(); most > report.Quiet {
		fmt.Fprintf(w, "\nDISTURBED: other processes used up to %.0f %% of the machine. Compare only ratios and CPU time.\n", 100*most)
	}
	if cmp.notes != "" {
		fmt.Fprintf(w, "\n%s", cmp.notes)
	}
}

// cells are the cells of a line; nil if it was not measured.
func (cmp *comparison) cells(l line) []string {
	cells := []string{l.row, l.unit}
	var first, own *float64
	for i, p := range cmp.peers {
		all := values(cmp.Samples, p.title, l.row, l.unit)
		own = nil
		switch {
		case all != nil:
			median := report.Median(all)
			cells = append(cells, report.Number(median))
			own = &median
		case l.controllers && !p.controllers:
			cells = append(cells, "never")
		default:
			cells = append(cells, "–")
		}
		if i == 0 {
			first = own
		}
	}
	if own == nil {
		return nil
	}
	if cmp.datastores != nil || len(cmp.peers) < 2 {
		return cells
	}
	ratio := "–"
	if first != nil && *first > 0 {
		ratio = strconv.FormatFloat(*own / *first, 'f', 2, 64)
	}
	return append(cells, ratio)
}

func sum(values []float64) (total float64) {
	for _, v := range values {
		total += v
	}
	return total
}
