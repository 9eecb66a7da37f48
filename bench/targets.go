package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// A target is what Karve has to reach in a line: a bound for its own figure, or
// for that divided by the peer's. The zero value is none.
type target struct {
	bound   float64
	ratio   bool // of the ratio
	atLeast bool // else at most
}

func atMost(bound float64) target       { return target{bound: bound} }
func ratioAtLeast(bound float64) target { return target{bound: bound, ratio: true, atLeast: true} }

func (t target) String() string {
	if t == (target{}) {
		return ""
	}
	sign := "≤ "
	if t.atLeast {
		sign = "≥ "
	}
	s := sign + strconv.FormatFloat(t.bound, 'g', -1, 64)
	if t.ratio {
		s += " ×"
	}
	return s
}

// mark says whether a figure meets the target; nothing where there is no target
// or no peer to compare with. peer is nil then.
func (t target) mark(own float64, peer *float64) string {
	if t == (target{}) {
		return ""
	}
	if t.ratio {
		if peer == nil || *peer == 0 {
			return ""
		}
		own /= *peer
	}
	if own == t.bound || (own > t.bound) == t.atLeast {
		return "met"
	}
	return "MISSED"
}

// A line is one line of the table.
type line struct {
	row, unit string
	target    target
	// controllers: only a control plane with controllers ever gets there.
	controllers bool
}

// A figure is what one round measured of one line.
type figure struct {
	Row  string `json:"row"`
	Unit string `json:"unit"`
	// Parts are those of the peer's processes, which add up, or a single one.
	Parts []float64 `json:"parts"`
}

// A sample is what one round measured of one peer.
type sample struct {
	Peer    string   `json:"peer"`
	Round   int      `json:"round"`
	Figures []figure `json:"figures"`
	// OtherLoad is the part of the machine that was busy with something else.
	OtherLoad float64 `json:"other_load"`

	// objects are the names of what the cluster was born with, by path.
	objects map[string][]string
}

func (s *sample) add(row, unit string, parts ...float64) {
	s.Figures = append(s.Figures, figure{row, unit, parts})
}

// medians are those of the parts of a line over all rounds of a peer, nil
// without any.
func medians(samples []*sample, peer, row, unit string) []float64 {
	var parts [][]float64
	for _, s := range samples {
		for _, f := range s.Figures {
			if s.Peer != peer || f.Row != row || f.Unit != unit {
				continue
			}
			for i, v := range f.Parts {
				if i == len(parts) {
					parts = append(parts, nil)
				}
				parts[i] = append(parts[i], v)
			}
		}
	}
	var all []float64
	for _, values := range parts {
		all = append(all, median(values))
	}
	return all
}

// print writes the medians as one table: the peers' columns, Karve's being the
// last of them, its ratio to the first one's, and the target.
func (cmp *comparison) print(w io.Writer) error {
	t := table{{"", ""}}
	for _, p := range cmp.peers {
		t[0] = append(t[0], p.title)
	}
	ratio := ""
	if len(cmp.peers) > 1 {
		t[0] = append(t[0], "ratio")
		ratio = "; ratio: karve / " + cmp.peers[0].title
	}
	t[0] = append(t[0], "target", "")
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
	t.print(w)
	if most := cmp.otherLoad(); most > quiet {
		fmt.Fprintf(w, "\nDISTURBED: the machine was up to %.0f %% busy with something else. Only ratios mean anything then, and they little.\n", 100*most)
	}
	if cmp.notes != "" {
		fmt.Fprintf(w, "\n%s", cmp.notes)
	}
	return nil
}

// cells are those of a line, nil where nobody measured it.
func (cmp *comparison) cells(l line) []string {
	cells := []string{l.row, l.unit}
	var first, own *float64
	for i, p := range cmp.peers {
		parts := medians(cmp.Samples, p.title, l.row, l.unit)
		own = nil
		switch {
		case parts != nil:
			var texts []string
			for _, v := range parts {
				texts = append(texts, number(v))
			}
			cells = append(cells, strings.Join(texts, " + "))
			total := sum(parts)
			own = &total
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
	if l.target.ratio && cmp.against != againstEtcd {
		l.target = target{} // of another peer
	}
	if len(cmp.peers) < 2 {
		return append(cells, l.target.String(), l.target.mark(*own, nil))
	}
	ratio := "–"
	if first != nil && *first > 0 {
		ratio = strconv.FormatFloat(*own / *first, 'f', 2, 64)
	}
	return append(cells, ratio, l.target.String(), l.target.mark(*own, first))
}

func sum(values []float64) (total float64) {
	for _, v := range values {
		total += v
	}
	return total
}
