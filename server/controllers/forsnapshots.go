package controllers

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/karve-k8s/karve/server/controllers/replacements"
)

// firstWritesPoll is how often AwaitFirstWrites looks.
const firstWritesPoll = 10 * time.Millisecond

// AwaitFirstWrites waits until the controllers that run here have written what they write to every
// cluster at their start, or ctx ends. They do so soon after they are ready. A snapshot without that would
// differ from each cluster that starts with it. client is an administrator's.
func (c *Controllers) AwaitFirstWrites(ctx context.Context, client kubernetes.Interface) error {
	return wait.PollUntilContextCancel(ctx, firstWritesPoll, true, func(ctx context.Context) (bool, error) {
		return replacements.MissingWrites(ctx, client, c.Names()) == nil, nil
	})
}

// ForgetAbsentOwners makes the garbage collector ask the API server for each owner that it
// does not know, from now on. Call it before a reset, when the collector has no work.
func (c *Controllers) ForgetAbsentOwners() {
	if now := c.running(); now != nil && now.graph != nil {
		now.forget.Do(func() { replacements.RememberNoAbsentOwners(now.graph) })
	}
}
