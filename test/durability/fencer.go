package durability

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// A Fencer watches the leases of a cluster of several servers for [Fencer.Check], which shows that no two of them led at the
// same time. It goes on at another server when one does not answer.
type Fencer struct {
	servers func() []*API
	stop    context.CancelFunc
	watch   sync.WaitGroup
	from    int64 // the revision from which on the leases are watched

	mu      sync.Mutex
	at      int64 // everything up to here was seen
	tenures []Tenure
	lost    error // the history of the leases
}

const (
	leasesPath = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"

	// watchSeconds is how long a watch lasts. Before its end, the server sends a bookmark.
	watchSeconds = 8
)

// NewFencer watches from now on; Check does not look at what was before. servers returns those that may run; the
// first one must.
func NewFencer(ctx context.Context, servers func() []*API) (*Fencer, error) {
	list, at, err := servers()[0].List(ctx, leasesPath, "")
	if err != nil {
		return nil, err
	}
	f := &Fencer{servers: servers, from: at, at: at}
	for _, o := range list {
		f.holder(o)
	}
	ctx, f.stop = context.WithCancel(ctx)
	f.watch.Go(func() { f.run(ctx) })
	return f, nil
}

// Close ends the watch.
func (f *Fencer) Close() {
	f.stop()
	f.watch.Wait()
}

// run watches at one server after the other, because a server that does not answer looks like a quiet one. One that
// has just started has no history in its cache, so the others are asked before the history counts as lost.
func (f *Fencer) run(ctx context.Context) {
	expired := map[*API]bool{} // the servers that have said so since the last event or answer
	for turn := 0; ctx.Err() == nil; turn++ {
		servers := f.servers()
		api := servers[turn%len(servers)]
		limited, cancel := context.WithTimeout(ctx, (watchSeconds+2)*time.Second)
		err := api.Watch(limited, fmt.Sprintf("%s?timeoutSeconds=%d", leasesPath, watchSeconds), f.at, func(e Event) error {
			clear(expired)
			f.event(e)
			return nil
		})
		cancel()
		switch {
		case err == nil:
			clear(expired)
			continue
		case errors.Is(err, ErrExpired):
			expired[api] = true
			if !slices.ContainsFunc(servers, func(other *API) bool { return !expired[other] }) {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.lost = fmt.Errorf("the history of the leases from revision %d on is lost: %w", f.at, err)
				return
			}
		}
		wait(ctx)
	}
}

func wait(ctx context.Context) {
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
	}
}

func (f *Fencer) event(e Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = max(f.at, e.Object.Revision())
	if e.Type == "DELETED" {
		e.Object.Spec = nil // a deleted lease has no holder
	}
	if e.Type != "BOOKMARK" {
		f.holder(e.Object)
	}
}

// holder notes who has a lease. The caller has locked f, or nobody else knows it.
func (f *Fencer) holder(o Object) {
	if name := o.Metadata.Name; name == ControllersLease || name == SchedulerLease {
		holder, _ := o.Spec["holderIdentity"].(string)
		f.tenures = append(f.tenures, Tenure{name, holder, o.Revision()})
	}
}

// Checked says what a [Fencer.Check] has looked at.
type Checked struct {
	Acts  map[string]int // by identity
	Terms int            // how often a lease got another holder
}

// Check compares the audit logs of all processes with what was watched.
func (f *Fencer) Check(ctx context.Context, api *API, logs []string) (*Checked, error) {
	if err := f.caughtUp(ctx, api); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &Checked{Acts: map[string]int{}}
	var acts []Act
	for _, name := range logs {
		log, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		all, err := ReadAudit(log)
		log.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, act := range all {
			if act.Revision > f.from {
				acts = append(acts, act)
				c.Acts[act.Holder]++
			}
		}
	}
	holders := map[string]string{}
	for _, t := range f.tenures {
		if t.Holder != "" && holders[t.Lease] != t.Holder {
			holders[t.Lease] = t.Holder
			c.Terms++
		}
	}
	return c, errors.Join(TwoLeaders(f.tenures, acts)...)
}

// caughtUp waits until the present leases were seen.
func (f *Fencer) caughtUp(ctx context.Context, api *API) error {
	leases, _, err := api.List(ctx, leasesPath, "")
	if err != nil {
		return err
	}
	newest := max(revisionOf(leases, ControllersLease), revisionOf(leases, SchedulerLease))
	for {
		f.mu.Lock()
		at, lost := f.at, f.lost
		f.mu.Unlock()
		switch {
		case lost != nil || at >= newest:
			return lost
		case ctx.Err() != nil:
			return fmt.Errorf("the watch of the leases has seen revision %d, want %d", at, newest)
		}
		wait(ctx)
	}
}

func revisionOf(leases map[string]Object, name string) int64 {
	o := leases["kube-system/"+name]
	return o.Revision()
}
