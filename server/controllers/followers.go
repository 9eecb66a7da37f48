package controllers

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/karve-k8s/karve/server/controllers/replacements"
	"github.com/karve-k8s/karve/server/health"
	"github.com/karve-k8s/karve/server/sharedinformers"
)

// Followers returns the controllers' informers that have to see the changes. Among them are
// the garbage collector's metadata informers of custom resources.
func (c *Controllers) Followers(changes sharedinformers.Changes) ([]sharedinformers.Informer, error) {
	now := c.running()
	if now == nil {
		return nil, nil
	}
	const owner = "controllers"
	all, err := sharedinformers.Started(owner, now.shared)
	if err != nil || now.collected == nil {
		return all, err
	}
	// If a definition has changed, the garbage collector replaces the informer of its
	// custom resources. It asks the API server before it deletes anything.
	redefined := changes.Of[apiextensions.Resource("customresourcedefinitions")]
	for resource := range changes.Of {
		custom := strings.Contains(resource.Group, ".") && !scheme.Scheme.IsGroupRegistered(resource.Group)
		if !custom || slices.ContainsFunc(redefined, func(r sharedinformers.Change) bool { return r.Key == resource.String() }) {
			continue
		}
		preferred, err := now.mapper.ResourceFor(resource.WithVersion(""))
		if err != nil {
			continue // the garbage collector has not discovered this kind yet
		}
		generic, err := now.collected.ForResource(preferred)
		if err != nil {
			return nil, err
		}
		all = append(all, sharedinformers.Informer{Resource: resource, Informer: generic.Informer(), Of: owner})
	}
	return all, nil
}

// ForgetAbsentOwners makes the garbage collector ask the API server for each owner that it
// does not know, from now on. No worker may be running during the call.
func (c *Controllers) ForgetAbsentOwners() {
	if now := c.running(); now != nil && now.graph != nil {
		replacements.RememberNoAbsentOwners(now.graph)
	}
}

// healthChecks collects the checks that app.BuildControllers adds.
type healthChecks []health.Checker

func (c *healthChecks) AddHealthChecker(checks ...healthz.HealthChecker) {
	for _, check := range checks {
		*c = append(*c, check)
	}
}

// firstWritesPoll is how often AwaitFirstWrites checks.
const firstWritesPoll = 10 * time.Millisecond

// AwaitFirstWrites waits until the controllers that run here have written what they write to every
// cluster at their start. They do so soon after they are ready. A snapshot without that would
// differ from each cluster that starts with it. client is an administrator's.
func (c *Controllers) AwaitFirstWrites(ctx context.Context, client kubernetes.Interface) error {
	tick := time.NewTicker(firstWritesPoll)
	defer tick.Stop()
	for {
		err := replacements.MissingWrites(ctx, client, c.Names())
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}
