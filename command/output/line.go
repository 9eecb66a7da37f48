package output

import (
	"io"
	"os"
	"sync"

	"golang.org/x/term"
)

// Line is a line of a terminal that is shown until something else is to be printed there. Its
// methods may be called by several goroutines.
type Line struct {
	mu    sync.Mutex
	w     io.Writer
	width func() int
	shown bool
}

// clear goes to the beginning of the line and erases it.
const clear = "\r\x1b[K"

// NewLine is a line of the terminal that w is; nil if w is not one.
func NewLine(w io.Writer) *Line {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return &Line{w: w, width: func() int {
		width, _, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return 0
		}
		return width
	}}
}

// Show shows text in the line, as much of it as fits.
func (l *Line) Show(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if runes := []rune(text); l.width() > 0 && len(runes) >= l.width() {
		text = string(runes[:l.width()-1])
	}
	io.WriteString(l.w, clear+text)
	l.shown = true
}

// Clear removes what is shown.
func (l *Line) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clear()
}

// Write removes what is shown and writes p: whatever else goes to the terminal goes through here.
func (l *Line) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clear()
	return l.w.Write(p)
}

func (l *Line) clear() {
	if l.shown {
		io.WriteString(l.w, clear)
		l.shown = false
	}
}
