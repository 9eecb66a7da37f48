package logbridge

import (
	"sync/atomic"

	"github.com/sirupsen/logrus"
)

var serving atomic.Int32 // control planes of this process

// Serve prepares the logs of this process for a control plane that starts. Everything goes to
// logger, including kine's own lines at the levels that Quiet gives them. Call ended when it has stopped. If no other one runs, upstream's
// goroutines that end late are demoted still: see [Stopping].
func Serve(logger *logrus.Logger) (ended func()) {
	serving.Add(1)
	Install(logger)
	Stopping(false)
	Quiet(logger, "kine")
	return func() {
		if serving.Add(-1) > 0 {
			Stopping(false)
		}
	}
}
