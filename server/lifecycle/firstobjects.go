package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// FirstObjects is the last part to start. It waits for the objects that upstream creates some
// time after it reports ready, because the first `kubectl run` of a script needs them.
type FirstObjects struct {
	// Client returns the client configuration of an administrator. Run calls it.
	Client func() *rest.Config
	// ServiceAccounts means that a controller creates the default service account.
	ServiceAccounts bool
	// Services are the ranges of Service addresses that the server was given. Differs is called with those of the cluster's
	// first start if they count instead. It may be nil.
	Services []string
	Differs  func(first []string)
	// Missing is called if Run no longer waits, with the reason. It may be nil.
	Missing func(error)
	// Then is called when the objects exist. It may be nil.
	Then func(ctx context.Context, client kubernetes.Interface)

	missing atomic.Pointer[error]
}

const (
	// firstObjectsPoll is how often Run checks for the objects. The API server answers from a
	// cache.
	firstObjectsPoll = 10 * time.Millisecond
	// firstObjectsLimit is how long Run waits for them. A quota or a webhook of the cluster may refuse
	// them, and the rest of the cluster does not depend on them.
	firstObjectsLimit = 30 * time.Second
)

// Run calls ready when the objects exist, or after firstObjectsLimit.
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
	err = wait.PollUntilContextTimeout(ctx, firstObjectsPoll, firstObjectsLimit, true, func(context.Context) (bool, error) {
		err := look()
		if err != nil {
			f.missing.Store(&err)
		}
		return err == nil, nil
	})
	if ctx.Err() != nil {
		return nil
	}
	if err != nil && f.Missing != nil {
		f.Missing(f.LastError())
	}
	if f.Differs != nil {
		f.compareServices(ctx, client)
	}
	ready()
	if f.Then != nil {
		f.Then(ctx, client)
	}
	<-ctx.Done()
	return nil
}

// compareServices calls Differs unless the ServiceCIDR of the first start has the ranges, or an administrator has added them.
func (f *FirstObjects) compareServices(ctx context.Context, client kubernetes.Interface) {
	all, err := client.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err != nil { // its API may be off
		return
	}
	var first, others []string
	for _, r := range all.Items {
		if r.Name == "kubernetes" {
			first = r.Spec.CIDRs
		} else {
			others = append(others, r.Spec.CIDRs...)
		}
	}
	added := func(r string) bool { return slices.Contains(first, r) || slices.Contains(others, r) }
	if first == nil || slices.Equal(first, f.Services) || others != nil && !slices.ContainsFunc(f.Services, func(r string) bool { return !added(r) }) {
		return
	}
	f.Differs(first)
}

// LastError returns the last reason why the part was not ready.
func (f *FirstObjects) LastError() error {
	if err := f.missing.Load(); err != nil {
		return *err
	}
	return ErrNoAnswer
}
