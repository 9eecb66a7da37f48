package server

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/server/lifecycle"
)

// firstObjects is the last part to start: it waits for what upstream makes in
// its own time after it has said that it is ready, and that the first
// `kubectl run` of a script needs all the same.
type firstObjects struct{ missing atomic.Pointer[error] }

// firstObjectsPoll is how often it looks; the answers come from a cache.
const firstObjectsPoll = 10 * time.Millisecond

func (f *firstObjects) run(ctx context.Context, s *controlPlane, ready func()) error {
	client, err := kubernetes.NewForConfig(s.clients().Config(certs.Admin))
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	cached := metav1.GetOptions{ResourceVersion: "0"}
	objects, err := s.bootstrapOptions()
	if err != nil {
		return err
	}
	look := func() error {
		if _, err := client.CoreV1().Services("default").Get(ctx, "kubernetes", cached); err != nil {
			return err
		}
		if !objects.ServiceAccounts {
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

// last is the reason a start that timed out names.
func (f *firstObjects) last() error {
	if err := f.missing.Load(); err != nil {
		return *err
	}
	return lifecycle.ErrNoAnswer
}
