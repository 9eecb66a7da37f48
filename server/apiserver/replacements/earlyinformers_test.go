package replacements

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// A hook that waits for unreachable storage does not delay the rest of the shutdown.
func TestHooksHaveALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, began := make(chan struct{}), time.Now()
		e := &Early{Hooks: func() error { <-release; return errors.New("too late") }}
		if err := e.runHooks(hooksLimit); err != nil || time.Since(began) != hooksLimit {
			t.Errorf("got %v after %v, want nil after %v", err, time.Since(began), hooksLimit)
		}
		close(release)
		broken := errors.New("broken")
		e.Hooks = func() error { return broken }
		if err := e.runHooks(hooksLimit); !errors.Is(err, broken) {
			t.Errorf("got %v, want %v", err, broken)
		}
	})
}

// neverReady is storage whose cache is never filled.
type neverReady struct{ rest.StorageWithReadiness }

func (neverReady) ReadinessCheck() error { return errors.New("no") }

// Informers that do not fill delay neither the start for ever nor a stop.
func TestEarlyInformersHaveALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &Early{filled: make(chan struct{})}
		e.ctx, e.cancel = context.WithCancel(t.Context())
		began := time.Now()
		e.Wait(t.Context())
		if took := time.Since(began); took != earlyLimit {
			t.Errorf("waited %v, want %v", took, earlyLimit)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began = time.Now()
		e.Wait(ctx)
		if took := time.Since(began); took != 0 {
			t.Errorf("waited %v for a server that is to stop", took)
		}
		// The same is true of storage that is never ready.
		unready := genericapiserver.NewStorageReadinessHook(time.Hour)
		unready.RegisterStorage(metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, neverReady{})
		var filling sync.WaitGroup
		filling.Go(func() { e.Fill([]*genericapiserver.GenericAPIServer{{StorageReadinessHook: unready}}) })
		time.Sleep(time.Minute)
		e.cancel()
		filling.Wait()
		select {
		case <-e.filled:
			t.Error("filled, with a storage that was not ready")
		default:
		}
	})
}
