package external

import (
	"context"
	"testing"

	"github.com/k3s-io/kine/pkg/server"

	"github.com/karve-k8s/karve/internal/eventually"
)

// eventsAt are events of these revisions.
func eventsAt(revisions ...int64) (events []*server.Event) {
	for _, revision := range revisions {
		events = append(events, &server.Event{KV: &server.KeyValue{Key: "/a", ModRevision: revision}})
	}
	return events
}

// moment is what a tail reads at once.
type moment struct {
	events            []*server.Event
	newest, compacted int64
}

// reads is a tail that reads what it is told to.
func reads(t *testing.T) (*tail, chan moment) {
	read := make(chan moment)
	f := newTail(func(ctx context.Context, _ int64) (server.EventBatch, int64, error) {
		select {
		case m := <-read:
			return server.EventBatch{Events: m.events, CurrentRev: m.newest}, m.compacted, nil
		case <-ctx.Done():
			return server.EventBatch{}, 0, ctx.Err()
		}
	}, func(err error) { t.Error(err) })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); f.run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return f, read
}

// A watch that does not read ends: what it has is without a gap, and nothing comes after the batch that it had no room for.
func TestAWatchContinuesOrEnds(t *testing.T) {
	f, read := reads(t)
	slow, fast := f.watch(t.Context()), f.watch(t.Context())
	const all = 2 * tailBuffer
	for revision := int64(1); revision <= all; revision++ {
		f.wake(revision)
		read <- moment{events: eventsAt(revision), newest: revision}
		if got := eventually.Receive(t, "a batch", fast); got.CurrentRev != revision {
			t.Fatalf("the watch that reads is at %d, want %d", got.CurrentRev, revision)
		}
		if revision == tailBuffer+5 { // room again, which comes too late
			<-slow
		}
	}
	next := int64(2)
	for batch := range slow {
		if batch.CurrentRev != next {
			t.Fatalf("%d comes after %d", batch.CurrentRev, next-1)
		}
		next++
	}
	if next != tailBuffer+1 {
		t.Errorf("the watch that did not read ends before %d, want %d", next, tailBuffer+1)
	}
}

// The end of a tail is the end of its watches, and of those that begin after it.
func TestWatchesEndWithTheTail(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := newTail(func(ctx context.Context, _ int64) (server.EventBatch, int64, error) {
		<-ctx.Done()
		return server.EventBatch{}, 0, ctx.Err()
	}, func(error) {})
	before := f.watch(t.Context())
	cancel()
	f.run(ctx)
	for _, w := range []<-chan server.EventBatch{before, f.watch(t.Context())} {
		if _, open := <-w; open {
			t.Error("a watch has a batch after the end")
		}
	}
}
