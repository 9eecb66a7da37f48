package kine

import (
	"context"

	"github.com/k3s-io/kine/pkg/server"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// store is a datastore as the client in this process uses it: the engine, or a
// backend of kine's.
type store interface {
	// start is called once, before everything else; ctx ends with the shim.
	start(ctx context.Context) error
	// CurrentRevision is the newest one.
	CurrentRevision(ctx context.Context) (int64, error)
	// waitFor waits until something was written at revision or after it. It may
	// return earlier, when it cannot find out.
	waitFor(ctx context.Context, revision int64)
	// open begins a watch at revision, or at the next one if that is 0. A cursor that
	// is a poller calls wake. opened is a revision of the store at which the watch had
	// begun, before which it sends nothing if it has no revision.
	open(ctx context.Context, key, end string, revision int64, prev bool, wake func()) (c cursor, opened int64, err error)
	// client reads and writes resources for the user that has these watches.
	//
	// A read of a key that is not there, the resource's prefix, is how the API
	// server asks for the newest revision, to wait until its cache knows of it
	// (etcd3/store.go, GetCurrentResourceVersion). It would ask for progress
	// within 100 ms; the client makes w tell it, which is the same, at once.
	client(w *watcher) kubernetes.Interface
}

// cursor is a watch in the form a client of this process reads it.
type cursor interface {
	// Next waits for events. Without any it answers only to RequestProgress,
	// with a revision up to which there are none left to read.
	Next(ctx context.Context) (int64, []*clientv3.Event, error)
	// RequestProgress may be called at any time. It may come to nothing where
	// events are on their way.
	RequestProgress()
	Close()
}

// poller is a cursor that can be read without a wait, so that a watch without events
// needs no goroutine. Where there is no more, wake is called when there is, or when
// Close is.
type poller interface {
	Poll() (revision int64, events []*clientv3.Event, some, more bool, err error)
}

// compactedError is a watch whose history is gone.
type compactedError struct{ current, compacted int64 }

func (compactedError) Error() string { return server.ErrCompacted.Error() }
