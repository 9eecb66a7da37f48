package inprocess

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// A SpaceKeeper is a [Store] that can say why it refuses writes on a full disk.
type SpaceKeeper interface {
	// NoSpace returns datastore.ErrNoSpace as a write would, with the path and the remedy.
	NoSpace() error
}

// Store is a datastore as a client reads and writes it directly: the engine ([Engine]), or
// a database behind another driver.
type Store interface {
	// Start is called once, before all other methods. ctx ends when the store is no
	// longer served.
	Start(ctx context.Context) error
	// CurrentRevision returns the newest revision.
	CurrentRevision(ctx context.Context) (int64, error)
	// WaitFor returns when something has been written at revision or after it. It may
	// return earlier when it cannot find out.
	WaitFor(ctx context.Context, revision int64)
	// Watch begins a watch at revision, or at the next one if that is 0. A cursor that
	// is a [Poller] calls wake. opened is a revision at which the watch had begun; a
	// watch without a revision sends nothing of that revision or before.
	Watch(ctx context.Context, key, end string, revision int64, prevKV bool, wake func()) (c Cursor, opened int64, err error)
	// List reads a range in chunks of one revision. The last chunk alone has the header, the count, and
	// tells whether there are more keys than the limit.
	List(ctx context.Context, r *pb.RangeRequest) ([]*pb.RangeResponse, error)
	// Client reads and writes resources.
	//
	// To find out what its cache has to wait for, the API server reads a key that does
	// not exist, the prefix of the resource (etcd3/store.go, GetCurrentResourceVersion).
	// It would request progress within 100 ms. The client therefore calls awaited with
	// the revision of its answer, which makes the watches report progress now.
	Client(awaited func(revision int64)) kubernetes.Interface
}

// API is the etcd API of a store. The client uses it for what is rare, so that etcd's
// transactions are translated in one place.
type API interface {
	pb.KVServer
	pb.LeaseServer
	pb.MaintenanceServer
}

// notifier is an API whose own watches want to be notified of a new revision.
type notifier interface{ Notify() }

// Cursor is a watch in the form in which a client reads it.
type Cursor interface {
	// Next waits for events. It returns none only to answer RequestProgress; the
	// revision is then one up to which no events are left to read.
	Next(ctx context.Context) (int64, []*clientv3.Event, error)
	// RequestProgress may be called at any time. It may have no effect while events are
	// on their way.
	RequestProgress()
	Close()
}

// Poller is a cursor that can be read without waiting, so that a watch without events
// needs no goroutine. After Poll has returned everything, the cursor calls wake when there
// is more, and when it is closed.
type Poller interface {
	Poll() (revision int64, events []*clientv3.Event, some, more bool, err error)
}

// CompactedError is the end of a watch whose history has been compacted.
type CompactedError struct{ Current, Compacted int64 }

func (CompactedError) Error() string { return rpctypes.ErrGRPCCompacted.Error() }
