// Package report prints what a benchmark has measured: as a table, and in Go's
// benchmark format.
package report

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Quiet is the part of the machine that other processes may use without a remark.
const Quiet = 0.10

// A Table has lines of cells. The first two columns are text, and the others figures.
type Table [][]string

// Print writes the table with aligned columns.
func (t Table) Print(w io.Writer) {
	width := map[int]int{}
	for _, cells := range t {
		for i, cell := range cells {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for _, cells := range t {
		var line strings.Builder
		for i, cell := range cells {
			gap := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			switch {
			case i == 0:
				line.WriteString(cell + gap)
			case i == 1:
				line.WriteString("  " + cell + gap)
			default:
				line.WriteString("  " + gap + cell)
			}
		}
		fmt.Fprintln(w, line.String())
	}
}

// Median is the median of at least one value: of an even number, the mean of the middle two.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Number prints about three significant digits, with commas in large numbers.
func Number(v float64) string {
	switch {
	case v >= 1000:
		s := strconv.FormatFloat(v, 'f', 0, 64)
		for i := len(s) - 3; i > 0; i -= 3 {
			s = s[:i] + "," + s[i:]
		}
		return s
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case v == 0:
		return "0"
	case v >= 0.01:
		return strconv.FormatFloat(v, 'f', 3, 64)
	default:
		return strconv.FormatFloat(v, 'f', 5, 64)
	}
}
