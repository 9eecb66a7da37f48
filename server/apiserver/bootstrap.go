package apiserver

import (
	"context"

	"github.com/karve-k8s/karve/bootstrap"
	"github.com/karve-k8s/karve/server/apiserver/stored"
	"github.com/karve-k8s/karve/server/deviations"
)

// bootstrap writes the first objects of a new cluster. It runs after the configuration has
// been built, which decides how objects are stored, and before the chain is built, whose
// caches read them. It returns the names of the post-start hooks that a stop may interrupt.
func (c Config) bootstrap(ctx context.Context, cfg configs) (interruptible []string, err error) {
	seeds := c.Deviations.On(deviations.Bootstrap) // otherwise upstream's hooks and controllers create the first objects
	objects, err := bootstrap.New(c.Bootstrap, cfg.extensions, cfg.kube, cfg.aggregator, priorities())
	if err != nil {
		return nil, err
	}
	if seeds && c.Store != nil {
		if _, err := objects.Seed(ctx, stored.Recorded(c.Store)); err != nil {
			return nil, err
		}
	}
	return objects.ReplaceHooks(seeds, &cfg.extensions.GenericConfig.Config, cfg.kube.ControlPlane.Generic, &cfg.aggregator.GenericConfig.Config)
}
