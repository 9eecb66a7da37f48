package output

import (
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// logProgressEvery is the least time between two log lines about a start that takes long.
const logProgressEvery = 30 * time.Second

// StartProgress logs what a start is doing that takes longer than a few seconds.
type StartProgress struct {
	log *logrus.Logger
	now func() time.Time

	mu     sync.Mutex
	logged time.Time
	over   bool
}

// NewStartProgress tells the progress of a server in log.
func NewStartProgress(log *logrus.Logger) *StartProgress {
	return &StartProgress{log: log, now: time.Now}
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
	if p.logged.IsZero() || p.now().Sub(p.logged) >= logProgressEvery {
		p.logged = p.now()
		p.log.Info(text)
	}
}

// Done ends it: nothing is logged any more.
func (p *StartProgress) Done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
}
