package apiserver

import (
	"context"

	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/karve-k8s/karve/bootstrap"
	"github.com/karve-k8s/karve/server/deviations"
)

// bootstrap is done between the configuration, which says how objects are stored,
// and the chain, whose caches read them.
func (c Config) bootstrap(ctx context.Context, cfg configs) error {
	new, err := bootstrap.New(c.Bootstrap, cfg.extensions, cfg.kube, cfg.aggregator, priorities())
	if err != nil {
		return err
	}
	if c.Store != nil && c.Deviations.On(deviations.Bootstrap) {
		if _, err := new.Seed(ctx, c.Store); err != nil {
			return err
		}
	}
	if !c.Deviations.On(deviations.Bootstrap) {
		return nil
	}
	others := []*genericapiserver.Config{cfg.kube.ControlPlane.Generic}
	if cfg.aggregator != nil {
		others = append(others, &cfg.aggregator.GenericConfig.Config)
	}
	return new.ReplaceHooks(&cfg.extensions.GenericConfig.Config, others...)
}
