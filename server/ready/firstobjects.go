// Package ready is what a control plane waits for after its parts serve, and what it does
// after that.
package ready

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/server/lifecycle"
)

// FirstObjects is the last part to start. Upstream reports that it is ready some time before
// it has made these objects, and the first `kubectl run` of a script needs them.
type FirstObjects struct {
	// Client returns that of an administrator. It is called when the part starts.
	Client func() *rest.Config
	// ServiceAccounts says that a controller makes the default service account.
	ServiceAccounts bool

	missing atomic.Pointer[error]
}

// firstObjectsPoll is how often it looks; the answers come from a cache.
const firstObjectsPoll = 10 * time.Millisecond

// Run calls ready when the objects are there.
func (f *FirstObjects) Run(ctx context.Context, ready func()) error {
	client, err := kubernetes.NewForConfig(f.Client())
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	cached := metav1.GetOptions{ResourceVersion: "0"}
	look := func() error {
		if _, err := client.CoreV1().Services("default").Get(ctx, "kubernetes", cached); err != nil {
			return err
		}
		if !f.ServiceAccounts {
			return nil
		}
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", cached)
		return err
	}
	tick := time.NewTicker(firstObjectsPoll)
	defer tick.Stop()
	for {
		err := look()
		if err == nil {
			break
		}
		f.missing.Store(&err)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
	ready()
	<-ctx.Done()
	return nil
}

// LastError is the last reason why the part was not ready.
func (f *FirstObjects) LastError() error {
	if err := f.missing.Load(); err != nil {
		return *err
	}
	return lifecycle.ErrNoAnswer
}
