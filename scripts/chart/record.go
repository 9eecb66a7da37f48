package main

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// A record is what scripts/bench -record has written: Go's benchmark format, in which
// lines that begin with # are remarks.
type record struct {
	file    string
	remarks map[string]string
	figures map[figure][]float64 // one for each round
}

// A figure is one row of one peer, in one unit.
type figure struct{ row, peer, unit string }

// readRecord reads a record. It is strict: a line that it does not understand is an error.
func readRecord(r io.Reader, file string) (*record, error) {
	rec := &record{file: file, remarks: map[string]string{}, figures: map[figure][]float64{}}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		if err := rec.add(lines.Text()); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	if len(rec.figures) == 0 {
		return nil, fmt.Errorf("%s has no figures", file)
	}
	return rec, nil
}

func (r *record) add(line string) error {
	if remark, ok := strings.CutPrefix(line, "# "); ok {
		key, text, ok := strings.Cut(remark, ": ")
		if !ok {
			return fmt.Errorf("the remark %q has no key", remark)
		}
		r.remarks[key] = text
		return nil
	}
	fields := strings.Fields(line)
	switch {
	case len(fields) == 0, strings.HasPrefix(line, "Unit "):
		return nil
	case !strings.HasPrefix(line, "Benchmark"):
		if key, _, ok := strings.Cut(line, ": "); !ok || key != strings.ToLower(key) || strings.Contains(key, " ") {
			return fmt.Errorf("%q is neither a result nor configuration", line)
		}
		return nil
	case len(fields) < 4 || len(fields)%2 != 0:
		return fmt.Errorf("%q: want a name, a count, and pairs of a value and a unit", line)
	}
	name := strings.Split(fields[0], "/")
	if len(name) != 3 || !strings.HasPrefix(name[2], "peer=") {
		return fmt.Errorf("the name %q is not BENCHMARK/ROW/peer=PEER", fields[0])
	}
	for i := 2; i < len(fields); i += 2 {
		value, err := strconv.ParseFloat(fields[i], 64)
		if err != nil || value < 0 {
			return fmt.Errorf("%q is not a figure", fields[i])
		}
		f := figure{name[1], strings.TrimPrefix(name[2], "peer="), fields[i+1]}
		r.figures[f] = append(r.figures[f], value)
	}
	return nil
}

// median returns that of all rounds. A figure that was not recorded is an error.
func (r *record) median(f figure) (float64, error) {
	sorted := slices.Sorted(slices.Values(r.figures[f]))
	n := len(sorted)
	if n == 0 {
		return 0, fmt.Errorf("%s has no %s of %s in %s", r.file, f.row, f.peer, f.unit)
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2, nil
}
