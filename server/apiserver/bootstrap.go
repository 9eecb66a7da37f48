package apiserver

import (
	"github.com/karve-k8s/karve/bootstrap"
	"github.com/karve-k8s/karve/server/apiserver/stored"
	"github.com/karve-k8s/karve/server/deviations"
)

// bootstrap writes the first objects of a new cluster. It runs after the configuration has
// been built, which decides how objects are stored, and before the servers are created, whose
// caches read them. A stop may interrupt the post-start hooks that it replaces.
func (b *chain) bootstrap() error {
	c := b.config
	seeds := c.Deviations.On(deviations.Bootstrap) // otherwise upstream's hooks and controllers create the first objects
	objects, err := bootstrap.New(c.Bootstrap, b.extensions, b.kube, b.aggregator, priorities())
	if err != nil {
		return err
	}
	if seeds && c.Store != nil {
		if _, err := objects.Seed(b.ctx, stored.Recorded(c.Store)); err != nil {
			return err
		}
	}
	b.interruptible, err = objects.ReplaceHooks(seeds, &b.extensions.GenericConfig.Config, b.kube.ControlPlane.Generic, &b.aggregator.GenericConfig.Config)
	return err
}
