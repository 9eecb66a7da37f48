package logbridge

import "github.com/sirupsen/logrus"

// Serve prepares the logs of this process for a control plane that starts: everything goes
// to logger, and kine's own lines only if they matter.
func Serve(logger *logrus.Logger) {
	Install(logger)
	Stopping(false)
	Quiet(logger, "kine")
}
