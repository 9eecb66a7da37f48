package output

import (
	"io"

	"github.com/karve-k8s/karve/internal/logbridge"
)

// Colour is a colour of text on a terminal.
type Colour string

// All have the same length, so that coloured and plain cells of a column are equally wide.
const (
	Plain  Colour = "\x1b[39m"
	Green  Colour = "\x1b[32m"
	Yellow Colour = "\x1b[33m"
	Red    Colour = "\x1b[31m"
)

// Paint returns what colours a text for w: on a terminal unless NO_COLOR is set, and nowhere else.
func Paint(w io.Writer) func(Colour, string) string {
	if !logbridge.Colours(w) {
		return func(_ Colour, text string) string { return text }
	}
	return func(c Colour, text string) string { return string(c) + text + "\x1b[0m" }
}
