package durability

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Fencer watches a cluster of several servers for [Fencer.Check], which shows that no two of them led at the
// same time. It goes on at another server when one does not answer.
type Fencer struct {
	servers func() []*API
	stop    context.CancelFunc
	watches sync.WaitGroup

	from     int64 // the revision from which on everything is watched
	mu       sync.Mutex
	tenures  []Tenure
	leases   map[string]int64 // the newest revision that was seen of each
	deleted  map[string]span  // by uid
	bound    map[string]span  // by uid of the Pod
	created  []creation
	problems []error
}

// A span has a revision between two others: after from, at to at the latest.
type span struct{ from, to int64 }

// A creation is that of an object which only a controller creates.
type creation struct {
	what     string
	revision int64
}

// watchSeconds is how long a watch lasts. Before its end, the server sends a bookmark.
const watchSeconds = 8

// NewFencer watches every type that the servers have, from now on; Check does not look at what was before. servers returns those that may run; the
// first one must.
func NewFencer(ctx context.Context, servers func() []*API) (*Fencer, error) {
	f := &Fencer{servers: servers, leases: map[string]int64{}, deleted: map[string]span{}, bound: map[string]span{}}
	ctx, f.stop = context.WithCancel(ctx)
	all, err := f.begin(ctx, servers()[0])
	if err != nil {
		f.stop()
		return nil, err
	}
	for _, w := range all {
		f.from = max(f.from, w.at)
	}
	for _, w := range all {
		f.watches.Go(func() { w.run(ctx) })
	}
	return f, nil
}

// begin lists every type.
func (f *Fencer) begin(ctx context.Context, api *API) ([]*fencerWatch, error) {
	paths, err := api.collections(ctx)
	if err != nil {
		return nil, err
	}
	var all []*fencerWatch
	for _, path := range paths {
		list, at, err := api.List(ctx, path, "")
		if err != nil {
			return nil, err
		}
		w := &fencerWatch{Fencer: f, path: path, known: map[string]Object{}, at: at}
		for _, o := range list {
			w.known[o.Metadata.UID] = o
			f.holder(path, o)
		}
		all = append(all, w)
	}
	return all, nil
}

// Close ends the watches.
func (f *Fencer) Close() {
	f.stop()
	f.watches.Wait()
}

// collections returns the paths of what can be watched, without Events, which nobody deletes.
func (a *API) collections(ctx context.Context) ([]string, error) {
	var groups struct {
		Groups []struct {
			PreferredVersion struct{ GroupVersion string }
		}
	}
	if err := a.Do(ctx, http.MethodGet, "/apis", nil, &groups); err != nil {
		return nil, err
	}
	roots := []string{"/api/v1"}
	for _, g := range groups.Groups {
		roots = append(roots, "/apis/"+g.PreferredVersion.GroupVersion)
	}
	var paths []string
	for _, root := range roots {
		var list struct {
			Resources []struct {
				Name  string
				Verbs []string
			}
		}
		if err := a.Do(ctx, http.MethodGet, root, nil, &list); err != nil {
			return nil, err
		}
		for _, r := range list.Resources {
			if slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch") && r.Name != "events" {
				paths = append(paths, root+"/"+r.Name)
			}
		}
	}
	return paths, nil
}

// A fencerWatch follows one type.
type fencerWatch struct {
	*Fencer
	path  string
	known map[string]Object // by uid, from the list
	at    int64             // everything up to here was seen
}

// run watches at one server after the other, because a server that does not answer looks like a quiet one. One that
// has just started has no history in its cache, so the others are asked before the history counts as lost.
func (w *fencerWatch) run(ctx context.Context) {
	expired := map[*API]bool{} // the servers that have said so since the last event or answer
	for turn := 0; ctx.Err() == nil; turn++ {
		servers := w.servers()
		if len(servers) == 0 {
			w.pause(ctx)
			continue
		}
		api := servers[turn%len(servers)]
		limited, cancel := context.WithTimeout(ctx, (watchSeconds+2)*time.Second)
		err := api.Watch(limited, fmt.Sprintf("%s?timeoutSeconds=%d", w.path, watchSeconds), w.at, func(e Event) error {
			if e.Type != "BOOKMARK" {
				w.event(e)
			}
			clear(expired)
			w.at = max(w.at, e.Object.Revision())
			return nil
		})
		if errors.Is(err, ErrExpired) {
			expired[api] = true
			if !slices.ContainsFunc(servers, func(other *API) bool { return !expired[other] }) {
				err = w.again(limited, api)
			}
		}
		if err == nil {
			clear(expired)
		}
		if err != nil {
			w.pause(ctx)
		}
		cancel()
	}
}

func (w *fencerWatch) pause(ctx context.Context) {
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
	}
}

// again lists. What happened since the last event is only known to have happened.
func (w *fencerWatch) again(ctx context.Context, api *API) error {
	list, at, err := api.List(ctx, w.path, "")
	if err != nil {
		return err
	}
	gap, now := span{w.at, at}, map[string]Object{}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range list {
		now[o.Metadata.UID] = o
		if node(w.known[o.Metadata.UID]) == "" && node(o) != "" {
			w.bound[o.Metadata.UID] = gap
		}
	}
	for uid := range w.known {
		if _, ok := now[uid]; !ok {
			w.deleted[uid] = gap
		}
	}
	if strings.HasSuffix(w.path, "/leases") {
		w.problems = append(w.problems, fmt.Errorf("the history of the leases from revision %d to %d is lost", w.at, at))
	}
	w.known, w.at = now, at
	return nil
}

// node is the node to which a Pod is bound.
func node(o Object) string {
	name, _ := o.Spec["nodeName"].(string)
	return name
}

func (w *fencerWatch) event(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m, exact := e.Object.Metadata, span{e.Object.Revision() - 1, e.Object.Revision()}
	if e.Type == "DELETED" {
		w.deleted[m.UID] = exact
		delete(w.known, m.UID)
		e.Object.Spec = nil // a deleted lease has no holder
	} else {
		before, ok := w.known[m.UID]
		w.known[m.UID] = e.Object
		if node(before) == "" && node(e.Object) != "" {
			w.bound[m.UID] = exact
		}
		if !ok && len(m.ManagedFields) > 0 && m.ManagedFields[0].Manager == ControllersLease && slices.ContainsFunc(m.OwnerReferences, func(o OwnerReference) bool { return o.Controller }) {
			w.created = append(w.created, creation{"create " + w.path + " " + e.Object.Key(), exact.to})
		}
	}
	w.holder(w.path, e.Object)
}

// holder notes who has a lease. The caller has locked f, or nobody else knows it.
func (f *Fencer) holder(path string, o Object) {
	name := o.Metadata.Name
	if !strings.HasSuffix(path, "/leases") || o.Metadata.Namespace != "kube-system" || name != ControllersLease && name != SchedulerLease {
		return
	}
	holder, _ := o.Spec["holderIdentity"].(string)
	f.tenures = append(f.tenures, Tenure{name, holder, o.Revision()})
	f.leases[name] = o.Revision()
}

// Checked says what a [Fencer.Check] has looked at.
type Checked struct {
	Acts      map[string]int // by identity
	Terms     int            // how often a lease got another holder
	Unknown   int            // writes of leaders without a successful answer: only what they created was looked at
	Undecided int            // deletions and bindings near a change of leaders, whose revision is not known exactly
}

// Check compares the audit logs of all processes with what was watched. It waits until every deletion and
// every binding was seen.
func (f *Fencer) Check(ctx context.Context, api *API, logs []string) (*Checked, error) {
	if err := f.caughtUp(ctx, api); err != nil {
		return nil, err
	}
	c := &Checked{Acts: map[string]int{}}
	var recorded []Recorded
	var identities []string
	for _, name := range logs {
		log, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		audit, err := ReadAudit(log)
		log.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		identities = append(identities, audit.Identity)
		recorded = append(recorded, audit.Acts...)
		c.Unknown += len(audit.Unknown)
	}
	var early, late []Act // each act at the earliest and at the latest revision that it may have
	for waiting := recorded; ; {
		var next []Recorded
		for _, r := range waiting {
			at, ok := f.place(r)
			if !ok && r.After > f.from {
				next = append(next, r)
			}
			if !ok || at.to <= f.from {
				continue
			}
			one := r.Act
			one.Revision = at.to
			late = append(late, one)
			one.Revision = at.from + 1
			early = append(early, one)
		}
		if waiting = next; len(waiting) == 0 {
			break
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("no event was seen of %d writes of leaders, such as %s", len(waiting), waiting[0].What)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	problems := slices.Clone(f.problems)
	for i := range late {
		c.Acts[late[i].Holder]++
		first, last := TwoLeaders(f.tenures, early[i:i+1]), TwoLeaders(f.tenures, late[i:i+1])
		if len(first) > 0 && len(last) > 0 {
			problems = append(problems, last...)
		} else if len(first)+len(last) > 0 {
			c.Undecided++
		}
	}
	// A killed process has not recorded all that it created. Nothing says which process created an object.
	for _, made := range f.created {
		var last []error
		if made.revision <= f.from || slices.ContainsFunc(identities, func(identity string) bool {
			last = TwoLeaders(f.tenures, []Act{{ControllersLease, identity, made.what, made.revision}})
			return len(last) == 0
		}) {
			continue
		}
		problems = append(problems, last...)
	}
	holders := map[string]string{}
	for _, t := range f.tenures {
		if t.Holder != "" && holders[t.Lease] != t.Holder {
			holders[t.Lease] = t.Holder
			c.Terms++
		}
	}
	return c, errors.Join(problems...)
}

// place returns where the revision of a write is, if that is known yet.
func (f *Fencer) place(r Recorded) (at span, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case r.Bound != "":
		at, ok = f.bound[r.Bound]
	case r.Deleted != "":
		at, ok = f.deleted[r.Deleted]
	default:
		at, ok = span{r.Revision - 1, r.Revision}, true
	}
	return at, ok
}

// caughtUp waits until the watch of the leases has seen their present state.
func (f *Fencer) caughtUp(ctx context.Context, api *API) error {
	leases, _, err := api.List(ctx, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", "")
	if err != nil {
		return err
	}
	for _, name := range []string{ControllersLease, SchedulerLease} {
		o := leases["kube-system/"+name]
		for {
			f.mu.Lock()
			seen := f.leases[name]
			f.mu.Unlock()
			if seen >= o.Revision() {
				break
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				return fmt.Errorf("the watch of the lease %s has seen revision %d, want %d", name, seen, o.Revision())
			}
		}
	}
	return nil
}
