package replacements

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/coordination"
	informersv1 "k8s.io/client-go/informers/coordination/v1"
	listersv1 "k8s.io/client-go/listers/coordination/v1"
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

// Renewing returns a factory whose lister of Leases renews each one when the process has stood still. Only the
// node lifecycle controller reads the time of a renewal.
func (h *Heart) Renewing(f informers.SharedInformerFactory) informers.SharedInformerFactory {
	return renewing{f, h}
}

type renewing struct {
	informers.SharedInformerFactory
	heart *Heart
}

func (f renewing) Coordination() coordination.Interface {
	return renewingGroup{f.SharedInformerFactory.Coordination(), f.heart}
}

type renewingGroup struct {
	coordination.Interface
	heart *Heart
}

func (g renewingGroup) V1() informersv1.Interface {
	return renewingVersion{g.Interface.V1(), g.heart}
}

type renewingVersion struct {
	informersv1.Interface
	heart *Heart
}

func (v renewingVersion) Leases() informersv1.TypedLeaseInformer {
	return renewingInformer{v.Interface.Leases(), v.heart}
}

type renewingInformer struct {
	informersv1.TypedLeaseInformer
	heart *Heart
}

func (i renewingInformer) Lister() listersv1.LeaseLister {
	return renewingLister{i.TypedLeaseInformer.Lister(), i.heart}
}

type renewingLister struct {
	listersv1.LeaseLister
	heart *Heart
}

func (l renewingLister) Leases(namespace string) listersv1.LeaseNamespaceLister {
	return renewingLeases{l.LeaseLister.Leases(namespace), l.heart}
}

type renewingLeases struct {
	listersv1.LeaseNamespaceLister
	heart *Heart
}

func (l renewingLeases) Get(name string) (*coordinationv1.Lease, error) {
	lease, err := l.LeaseNamespaceLister.Get(name)
	stills := l.heart.beat()
	if err != nil || stills == 0 || lease.Spec.RenewTime == nil {
		return lease, err
	}
	lease = lease.DeepCopy()
	later := metav1.NewMicroTime(lease.Spec.RenewTime.Add(time.Duration(stills) * time.Microsecond))
	lease.Spec.RenewTime = &later
	return lease, nil
}
