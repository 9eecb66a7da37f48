package ready

import "github.com/sirupsen/logrus"

// Repairing logs that a start takes longer, and why, for bootstrap.Options.
func Repairing(log *logrus.Logger) func(hook string, err error) {
	return func(hook string, err error) {
		if err != nil {
			log.Warnf("%s: could not read what exists; trying again: %v", hook, err)
			return
		}
		log.Infof("%s: not everything that Kubernetes needs exists; creating it", hook)
	}
}
