package replacements

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	coordinationinformers "k8s.io/client-go/informers/coordination/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// A process that misses beats for that long has stood still: it was stopped, or its container or machine was.
const (
	beatInterval = time.Second
	standstill   = 5 * time.Second
)

// Heart notices that the process stood still. Meanwhile no node could renew its lease, and upstream's node
// lifecycle controller would take all of them for dead. It compares the time at which it has seen a renewal
// with the present, by the clock that Heart uses, too. A standstill therefore counts as a renewal of every
// lease: each node has its grace period again, as after a start. With an election, upstream's process ends
// instead.
type Heart struct {
	now func() time.Time

	mu     sync.Mutex
	last   time.Time
	stills int64 // how often it has stood still
}

// NewHeart returns a heart with that clock.
func NewHeart(now func() time.Time) *Heart { return &Heart{now: now, last: now()} }

// Run beats until ctx ends.
func (h *Heart) Run(ctx context.Context) {
	beats := time.NewTicker(beatInterval)
	defer beats.Stop()
	for {
		select {
		case <-beats.C:
			h.beat()
		case <-ctx.Done():
			return
		}
	}
}

// beat returns how often the process has stood still so far. Whoever continues first after a standstill notices it.
func (h *Heart) beat() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	if now.Sub(h.last) >= standstill {
		h.stills++
	}
	h.last = now
	return h.stills
}

// Renew makes the informer of Leases of a factory show each one as renewed when the process has stood still. Only the
// node lifecycle controller reads the time of a renewal. Call it before anything else asks the factory for Leases.
func (h *Heart) Renew(f informers.SharedInformerFactory) {
	f.InformerFor(&coordinationv1.Lease{}, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return renewingInformer{coordinationinformers.NewLeaseInformer(client, metav1.NamespaceAll, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}), h}
	})
}

type renewingInformer struct {
	cache.SharedIndexInformer
	heart *Heart
}

func (i renewingInformer) GetIndexer() cache.Indexer {
	return renewingIndexer{i.SharedIndexInformer.GetIndexer(), i.heart}
}

type renewingIndexer struct {
	cache.Indexer
	heart *Heart
}

// GetByKey is what a lister calls for a Lease.
func (i renewingIndexer) GetByKey(key string) (any, bool, error) {
	object, exists, err := i.Indexer.GetByKey(key)
	stills := i.heart.beat()
	lease, ok := object.(*coordinationv1.Lease)
	if !ok || stills == 0 || lease.Spec.RenewTime == nil {
		return object, exists, err
	}
	lease = lease.DeepCopy()
	later := metav1.NewMicroTime(lease.Spec.RenewTime.Add(time.Duration(stills) * time.Microsecond))
	lease.Spec.RenewTime = &later
	return lease, exists, err
}
