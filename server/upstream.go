package server

import (
	"github.com/karve-k8s/karve/server/deviations"
)

// switches are the deviations that are on. Validate reports names that do not exist.
func (c Config) switches() deviations.Switches {
	s, _ := deviations.Parse(c.Upstream)
	return s
}
