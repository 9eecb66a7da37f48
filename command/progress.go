package command

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/server"
)

// logProgressEvery is the least time between two log lines about a start that takes long.
const logProgressEvery = 30 * time.Second

// startProgress tells the user what a start is doing that takes longer than a few seconds: in a
// line of the terminal, or in the log if standard error is none.
type startProgress struct {
	log  *logrus.Logger
	line *output.Line // nil: the log
	now  func() time.Time

	mu     sync.Mutex
	logged time.Time
	over   bool
}

// showProgress makes a server with that configuration tell its progress until done is called.
func showProgress(config *server.Config, stderr io.Writer) (done func()) {
	p := &startProgress{log: config.Log, line: output.NewLine(stderr), now: time.Now}
	if p.line != nil && config.Log.Out == stderr {
		config.Log.SetOutput(p.line) // or both would write into the same line
	}
	config.Progress = p.tell
	return p.done
}

func (p *startProgress) tell(at server.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	text := fmt.Sprintf("the %s has been starting for %v", at.Part, at.For.Round(time.Second))
	if at.Doing != "" {
		text += " (" + at.Doing + ")"
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

// done ends it: nothing is shown any more.
func (p *startProgress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	if p.line != nil {
		p.line.Clear()
	}
}
