package ready

import "github.com/sirupsen/logrus"

// Repairing returns a function for bootstrap.Options that logs that a start takes longer, and
// why.
func Repairing(log *logrus.Logger) func(hook string, err error) {
	return func(hook string, err error) {
		if err != nil {
			log.Warnf("%s: cannot read the existing objects; trying again: %v", hook, err)
			return
		}
		log.Infof("%s: some objects that Kubernetes needs are missing; creating them", hook)
	}
}
