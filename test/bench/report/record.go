package report

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// A Record holds every figure of a run. It is written in Go's benchmark format
// (https://go.dev/design/14313-benchmark-format), of which benchstat compares files.
type Record struct {
	Benchmark string // such as Start
	CPU       string
	Remarks   []Remark // benchstat ignores them
	Entries   []Entry
}

// A Remark says something about a run, such as its date.
type Remark struct{ Key, Text string }

// A Entry is what one round measured of one row of one peer.
type Entry struct {
	Row    string // as the table calls it
	Peer   string
	Values []Value
}

// A Value has its unit as the table has it.
type Value struct {
	Amount float64
	Unit   string
}

// units are those of Go's benchmark format for those of the tables. The format prefers
// base units, to which benchstat adds a prefix.
var units = map[string]struct {
	name   string
	factor float64
	higher bool // is better
}{
	"s":                 {"sec/op", 1, false},
	"CPU s":             {"CPU-sec/op", 1, false},
	"/s":                {"op/sec", 1, true},
	"p50 ms":            {"p50-sec", 1e-3, false},
	"p99 ms":            {"p99-sec", 1e-3, false},
	"CPU us":            {"CPU-sec/op", 1e-6, false},
	"server µs each":    {"server-CPU-sec/op", 1e-6, false},
	"client µs each":    {"client-CPU-sec/op", 1e-6, false},
	"datastore µs each": {"datastore-CPU-sec/op", 1e-6, false},
	"MB":                {"B", 1e6, false},
	"MiB":               {"B", 1 << 20, false},
	"kB/s":              {"written-B/sec", 1e3, false},
	"% of a core":       {"cores", 1e-2, false},
	"/min":              {"commits/min", 1, false},
	"goroutines":        {"goroutines", 1, false},
}

// Remark adds a remark. A remark without a text is left out.
func (r *Record) Remark(key, text string) {
	if text != "" {
		r.Remarks = append(r.Remarks, Remark{key, text})
	}
}

// Add adds a figure. Figures of one row, peer and round that are added one after the other
// share a line.
func (r *Record) Add(row, peer string, amount float64, unit string) {
	if n := len(r.Entries); n > 0 {
		last := &r.Entries[n-1]
		same := func(v Value) bool { return v.Unit == unit }
		if last.Row == row && last.Peer == peer && !slices.ContainsFunc(last.Values, same) {
			last.Values = append(last.Values, Value{amount, unit})
			return
		}
	}
	r.Entries = append(r.Entries, Entry{row, peer, []Value{{amount, unit}}})
}

// Write writes the record. It returns an error for a unit that the format has no name for.
func (r *Record) Write(w io.Writer) error {
	var text strings.Builder
	for _, remark := range r.Remarks {
		fmt.Fprintf(&text, "# %s: %s\n", remark.Key, strings.Join(strings.Fields(remark.Text), " "))
	}
	fmt.Fprintf(&text, "goos: %s\ngoarch: %s\npkg: github.com/karve-k8s/karve/bench\ncpu: %s\n", runtime.GOOS, runtime.GOARCH, r.CPU)
	declared := map[string]bool{}
	for _, entry := range r.Entries {
		for _, v := range entry.Values {
			unit, known := units[v.Unit]
			if !known {
				return fmt.Errorf("%s: the unit %q has no name in Go's benchmark format", entry.Row, v.Unit)
			}
			if unit.higher && !declared[unit.name] {
				declared[unit.name] = true
				fmt.Fprintf(&text, "Unit %s better=higher\n", unit.name)
			}
		}
	}
	for _, entry := range r.Entries {
		fmt.Fprintf(&text, "Benchmark%s/%s/peer=%s 1", r.Benchmark, slug(entry.Row), slug(entry.Peer))
		for _, v := range entry.Values {
			unit := units[v.Unit]
			fmt.Fprintf(&text, " %s %s", strconv.FormatFloat(v.Amount*unit.factor, 'g', 6, 64), unit.name)
		}
		text.WriteByte('\n')
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// slug makes a name of a row: letters and digits, and a hyphen for what is between them.
func slug(row string) string {
	return strings.Join(strings.FieldsFunc(row, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}), "-")
}
