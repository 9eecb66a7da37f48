package replacements

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// reached is storage that refuses a watch from a resourceVersion which the datastore has not reached. Upstream's waits until the number is
// reached, without an event or an error. The client has it from data that are gone, such as those of a disk whose older image was put back; with
// 410 it lists again. The cache's own revision does not count: the client may have been told by another server.
type reached struct {
	storage.Interface
	newest *atomic.Uint64 // at least this is reached
}

func newReached(store storage.Interface) reached { return reached{store, &atomic.Uint64{}} }

// reachedLimit is how long a datastore may take to answer. One that is away does not stop a watch of the cache.
const reachedLimit = time.Second

func (r reached) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if from, err := r.Versioner().ParseResourceVersion(opts.ResourceVersion); err == nil && from > r.newest.Load() {
		limited, cancel := context.WithTimeout(ctx, reachedLimit)
		newest, err := r.GetCurrentResourceVersion(limited)
		cancel()
		if err == nil && from > newest {
			return nil, apierrors.NewResourceExpired(fmt.Sprintf("resourceVersion %d is from data that are gone: the newest one is %d", from, newest))
		}
		if err == nil {
			r.newest.Store(newest)
		}
	}
	return r.Interface.Watch(ctx, key, opts)
}
