package inprocess_test

import (
	"context"
	"testing"
	"time"

	kinememory "github.com/k3s-io/kine/pkg/drivers/memory"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/kine/external"
	"github.com/karve-k8s/karve/kine/inprocess"
	"github.com/karve-k8s/karve/kine/pace"
)

// A client that cannot use an event opens its watch again at once. However it reaches the store, it gets
// the same history no more often than from etcd.
func TestWatchesThatAreOpenedAgainArePaced(t *testing.T) {
	const again = 4
	e := memory(t)
	start := must(t, e, "/w/1", "1")
	engine, err := kine.Serve(t.Context(), e, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	_, backend, _ := kinememory.New(t.Context(), nil, nil) // kine's; it has no errors
	database, err := external.Serve(t.Context(), backend)
	if err != nil {
		t.Fatal(err)
	}
	defer database.Close()
	if made, err := backend.Create(t.Context(), "/w/1", []byte("1"), 0); err != nil || made != start+1 {
		t.Fatalf("created at %d, %v", made, err)
	}
	client := func(url string) clientv3.Watcher {
		c, err := inprocess.NewClient(url)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	socket, err := clientv3.New(clientv3.Config{Endpoints: []string{engine.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	for name, watcher := range map[string]clientv3.Watcher{
		"engine": client(engine.LocalEndpoint()), "on the socket": socket, "database": client(database.URL()),
	} {
		began := time.Now()
		for range 1 + again {
			ctx, cancel := context.WithCancel(t.Context())
			r := eventually.Receive(t, "an event", watcher.Watch(ctx, "/w/", clientv3.WithPrefix(), clientv3.WithRev(start)))
			if len(r.Events) != 1 || r.Err() != nil {
				t.Fatalf("%s: got %+v, want the event", name, r)
			}
			cancel()
		}
		if took := time.Since(began); took < again*pace.Interval {
			t.Errorf("%s: the same history %d times in %v, want %v at least", name, 1+again, took, again*pace.Interval)
		}
	}
}
