package snapshots

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/karve-k8s/karve/datastore"
)

// resettable returns a part whose cluster has one object, and its contents.
func resettable(t *testing.T) (*Control, *datastore.Dump) {
	t.Helper()
	engine, err := datastore.OpenEngine(nil, datastore.Options{Durability: datastore.Memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	c := &Control{Connection: Connection{Engine: engine, Forget: func() {}}}
	put(t, c, "kept", "then")
	to, err := engine.Dump(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c, to
}

func put(t *testing.T, c *Control, key, value string) {
	t.Helper()
	if _, err := c.Engine.Put(t.Context(), datastore.PutRequest{Key: key, Value: []byte(value)}); err != nil {
		t.Error(err)
	}
}

func wantSame(t *testing.T, c *Control, to *datastore.Dump) {
	t.Helper()
	if d, err := c.Engine.Differs(to, resetOptions); err != nil || d.Len() != 0 {
		t.Errorf("after the reset, these differ: %+v, %v", d, err)
	}
}

// A controller whose worker has an item while the batch is written may write something afterwards. It is
// gone when the reset returns.
func TestResetUndoesWhatComesLate(t *testing.T) {
	c, to := resettable(t)
	put(t, c, "kept", "now")
	queue := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[int64]{Name: "late"})
	defer queue.ShutDown()
	batches := 0
	c.Forget = func() { // is called just before each batch
		if batches++; batches == 1 {
			queue.Add(c.Engine.Revision())
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		before, _ := queue.Get()
		for c.Engine.Revision() == before {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(2 * quietTime)
		put(t, c, "of the former state", "late")
		queue.Done(before)
	}()
	done, err := c.settle(t.Context(), to, time.Minute)
	<-ended
	if err != nil || done.Rounds != 2 || done.Changed != 1 || done.Len() != 1 {
		t.Errorf("got %+v, %v, want one change and a second batch", done, err)
	}
	wantSame(t, c, to)
}

// While somebody writes all the time, a reset ends, and says what changes.
func TestResetOfABusyCluster(t *testing.T) {
	c, to := resettable(t)
	stop, ended := make(chan struct{}), make(chan struct{})
	put(t, c, "busy", "0")
	go func() {
		defer close(ended)
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
				put(t, c, "busy", fmt.Sprint(i))
			}
		}
	}()
	done, err := c.settle(t.Context(), to, 3*quietTime)
	if !errors.Is(err, errNotSettled) || !strings.Contains(err.Error(), "(busy)") || done.Surplus != 1 {
		t.Errorf("got %+v, %v", done, err)
	}
	close(stop)
	<-ended
	if _, err := c.settle(t.Context(), to, time.Minute); err != nil {
		t.Error(err)
	}
	wantSame(t, c, to)
}

// An object that comes late in a namespace that is gone would stay for ever. Nothing else is touched.
func TestResetRemovesWhatIsInNoNamespace(t *testing.T) {
	c, to := resettable(t)
	late := []string{"/registry/configmaps/gone/a", "/registry/services/specs/gone/b", "/registry/example.com/boats/gone/c"}
	stay := []string{"/registry/namespaces/there", "/registry/configmaps/there/a", "/registry/example.com/gone/c", "/registry/clusterroles/gone", "/calico/gone/a", "/other/pods/gone/a"}
	for _, key := range slices.Concat(late, stay) {
		put(t, c, key, "now")
	}
	if err := c.removeOrphans(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	if d, err := c.Engine.Differs(to, resetOptions); err != nil || !slices.Equal(slices.Sorted(slices.Values(d.Surplus)), slices.Sorted(slices.Values(stay))) {
		t.Errorf("got %+v and %v, want %q to stay", d, err, stay)
	}
}
