package kine

import (
	"context"
	"errors"

	"github.com/k3s-io/kine/pkg/server"

	"github.com/karve-k8s/karve/datastore"
)

// watch is a cursor whose events are handed to kine's bridge. Backend.mu guards
// its fields but the cursor.
type watch struct {
	cursor *datastore.Watcher
	handed int64 // the bridge has every event up to this revision
	ended  bool
}

// Watch hands over what happens in a range from revision on, or from the next one
// if that is 0, until ctx ends: then Events is closed. A start that is compacted
// is answered with CompactRevision alone.
//
// The channel has no buffer: what has been handed over, the bridge has.
func (b *Backend) Watch(ctx context.Context, key, end string, revision int64) server.WatchResult {
	events, errc := make(chan []*server.Event), make(chan error, 1)
	result := server.WatchResult{Events: events, Errorc: errc}
	cursor, err := b.engine.Watch(datastore.WatchRequest{Key: key, End: end, StartRevision: revision, PrevKV: true})
	if err != nil {
		if errors.Is(err, datastore.ErrCompacted) {
			result.CurrentRevision, result.CompactRevision = b.engine.Revision(), b.engine.CompactRevision()
		}
		errc <- toStatus(err)
		close(events)
		return result
	}
	w := &watch{cursor: cursor}
	b.mu.Lock()
	b.watches[w] = true
	b.mu.Unlock()
	go b.hand(ctx, w, events, errc)
	return result
}

func (b *Backend) hand(ctx context.Context, w *watch, events chan<- []*server.Event, errc chan<- error) {
	defer func() {
		w.cursor.Close()
		close(events)
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.watches, w)
		w.ended = true
		b.moved.Broadcast()
	}()
	for {
		resp, err := w.cursor.Next(ctx)
		if err != nil {
			if ctx.Err() == nil {
				errc <- toStatus(err)
			}
			return
		}
		if len(resp.Events) > 0 {
			batch := make([]*server.Event, len(resp.Events))
			for i := range resp.Events {
				batch[i] = event(&resp.Events[i])
			}
			select {
			case events <- batch:
			case <-ctx.Done():
				return
			}
		}
		b.mu.Lock()
		w.handed = resp.Revision
		b.moved.Broadcast()
		b.mu.Unlock()
	}
}

// WaitForSyncTo returns when every watch has handed over its events up to
// revision. It waits for nothing else, and no timer is involved; a client that
// does not read holds it up, as the interface leaves no way to say which watches
// the caller means.
func (b *Backend) WaitForSyncTo(revision int64) {
	revision = min(revision, b.engine.Revision())
	b.mu.Lock()
	defer b.mu.Unlock()
	var behind []*watch
	for w := range b.watches {
		if w.handed < revision {
			behind = append(behind, w)
			w.cursor.RequestProgress()
		}
	}
	for _, w := range behind {
		for w.handed < revision && !w.ended {
			b.moved.Wait()
		}
	}
}

func event(e *datastore.Event) *server.Event {
	kv := keyValue(&e.KV)
	out := &server.Event{Delete: e.Type == datastore.EventDelete, Create: e.IsCreate(), KV: &kv}
	if e.Prev != nil {
		prev := keyValue(e.Prev)
		out.PrevKV = &prev
	}
	return out
}
