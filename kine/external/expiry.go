package external

import (
	"context"
	"errors"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	"github.com/k3s-io/kine/pkg/ttl"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// expire deletes the keys whose leases end, until ctx or the backend ends. kine's own loop ends for good with its watch. It
// also forgets a lease whose key it could not delete, because kine's LogStructured takes any failed INSERT for a conflict.
func (b *Backend) expire(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.life, cancel)()
	for ctx.Err() == nil {
		ttl.Run(ctx, leased{b})
		pause(ctx)
	}
}

// leased is the backend of kine's loop for leases. Its calls last until the database has answered, because the loop logs
// each failure.
type leased struct{ *Backend }

func (l leased) List(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) (rev int64, kvs []*server.KeyValue, err error) {
	for {
		rev, kvs, err = l.Backend.List(ctx, key, end, limit, revision, keysOnly)
		if status.Code(err) != codes.Unavailable || ctx.Err() != nil {
			return rev, kvs, err
		}
		pause(ctx)
	}
}

func (l leased) Delete(ctx context.Context, key string, revision int64) (rev int64, kv *server.KeyValue, ok bool, err error) {
	for {
		rev, kv, ok, err = l.Backend.Delete(ctx, key, revision)
		switch {
		case err == nil && !ok && kv != nil && kv.Lease > 0 && kv.ModRevision > revision:
			return rev, kv, ok, errRenewed
		case err == nil || ctx.Err() != nil:
			return rev, kv, ok, err
		}
		pause(ctx)
	}
}

// errRenewed keeps kine's loop from forgetting the new lease of a key together with the old one.
var errRenewed = errors.New("the lease was renewed meanwhile")

// pause is between two attempts.
func pause(ctx context.Context) {
	select {
	case <-time.After(pollInterval):
	case <-ctx.Done():
	}
}
