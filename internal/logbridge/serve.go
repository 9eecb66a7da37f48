package logbridge

import "github.com/sirupsen/logrus"

// Serve prepares the logs of this process for a control plane that starts. Everything goes to
// logger, including kine's own lines at the levels that Quiet gives them.
func Serve(logger *logrus.Logger) {
	Install(logger)
	Stopping(false)
	Quiet(logger, "kine")
}
