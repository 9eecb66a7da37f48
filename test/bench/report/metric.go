package report

import (
	"fmt"
	"strconv"
	"strings"
)

// Metric reads a value without labels from a page in Prometheus' text format.
func Metric(page []byte, name string) (float64, error) {
	for line := range strings.Lines(string(page)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(rest), 64)
		}
	}
	return 0, fmt.Errorf("the server has no metric %s", name)
}
