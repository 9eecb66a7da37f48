package output

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// logProgressEvery is the least time between two log lines about a start that takes long.
const logProgressEvery = 30 * time.Second

// StartProgress tells the user what a start is doing that takes longer than a few seconds: in a
// line of the terminal, or in the log if standard error is none.
type StartProgress struct {
	log  *logrus.Logger
	line *Line // nil: the log
	now  func() time.Time

	mu     sync.Mutex
	logged time.Time
	over   bool
}

// NewStartProgress is the progress of a server that writes log to stderr.
func NewStartProgress(log *logrus.Logger, stderr io.Writer) *StartProgress {
	p := &StartProgress{log: log, line: NewLine(stderr), now: time.Now}
	if p.line != nil && log.Out == stderr {
		log.SetOutput(p.line) // or both would write into the same line
	}
	return p
}

// Tell says that a part has been starting for a time, and what it does, if that is known.
func (p *StartProgress) Tell(part string, since time.Duration, doing string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	text := fmt.Sprintf("the %s has been starting for %v", part, since.Round(time.Second))
	if doing != "" {
		text += " (" + doing + ")"
	}
	if p.line != nil {
		p.line.Show("karve: " + text)
		return
	}
	if p.logged.IsZero() || p.now().Sub(p.logged) >= logProgressEvery {
		p.logged = p.now()
		p.log.Info(text)
	}
}

// Done ends it: nothing is shown any more.
func (p *StartProgress) Done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	if p.line != nil {
		p.line.Clear()
	}
}
