// Package manifests applies the files of a directory to the cluster, and deletes the objects of files that are removed.
package manifests

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/internal/panics"
	"github.com/karve-k8s/karve/server/election"
)

// How often the directory is looked at, and for how long a file must not have changed.
const (
	lookEvery  = 3 * time.Second
	quiet      = 500 * time.Millisecond
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// Options is the configuration of the part.
type Options struct {
	Dir string
	// Election is of the server that applies; nil: no other can.
	Election *election.Election
	// Connect returns an administrator's client. It is called in each term.
	Connect func() *rest.Config
	Log     *logrus.Logger
}

// Manifests is the part that applies the files.
type Manifests struct {
	Options

	mu     sync.Mutex
	status control.Manifests
}

// New returns the part. It looks at the directory in Run.
func New(o Options) *Manifests { return &Manifests{Options: o} }

// Run applies the files while this server leads, until ctx ends. It is ready immediately: no file keeps a server from
// becoming ready.
func (m *Manifests) Run(ctx context.Context, ready func()) error {
	ready()
	standby := func() {
		if _, err := os.Stat(m.Dir); err == nil {
			m.tell(nil, errors.New("another server leads, and applies the files of its directory"))
		}
	}
	return m.Election.Follow(ctx, standby,
		func(ctx context.Context, term *election.Term) error {
			w := &watcher{Manifests: m, client: term.Fence(m.Connect()), known: map[string]*state{}, retry: firstRetry}
			for {
				next := lookEvery
				if err := panics.Catch(func() error { next = w.look(ctx); return nil }); err != nil {
					m.tell(w.known, err)
				}
				select {
				case <-time.After(next):
				case <-ctx.Done():
					return nil
				}
			}
		})
}

// Status returns the state of each file.
func (m *Manifests) Status() control.Manifests {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.status
}

// tell makes the status, and logs a problem of the directory that is new.
func (m *Manifests) tell(known map[string]*state, problem error) {
	now := control.Manifests{Dir: m.Dir}
	if problem != nil {
		now.Problem = problem.Error()
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		now.Files = append(now.Files, known[name].Manifest)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if problem != nil && now.Problem != m.status.Problem && known != nil {
		m.Log.Warnf("manifests: %v", problem)
	}
	m.status = now
}

// state is what is known of a unit.
type state struct {
	control.Manifest
	stamp string
	ids   []id
	keeps bool // what it has applied before stays: a part of it cannot be read, or it has kinds that the cluster does not have
	again bool // the cluster has refused something
}

// watcher applies the files during a term.
type watcher struct {
	*Manifests
	client   *rest.Config
	*cluster // nil until something is to be done

	known  map[string]*state
	stamps map[string]string // of the last look
	pruned bool              // nothing is left to delete
	retry  time.Duration
	next   time.Time // of the next try of what was refused; zero: nothing was
}

// look applies what has changed, and returns how long to wait until the next look. It deletes what is left over when two looks have
// seen the same files.
func (w *watcher) look(ctx context.Context) time.Duration {
	units, err := scan(w.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		if w.stamps != nil {
			w.Log.Infof("manifests: there is no %s any more; what it has made stays", w.Dir)
		}
		w.known, w.stamps, w.pruned, w.next = map[string]*state{}, nil, false, time.Time{}
		w.tell(nil, nil)
		return lookEvery
	}
	if err != nil {
		w.tell(w.known, err)
		return lookEvery
	}
	before, again, unstable := w.stamps, !w.next.IsZero() && time.Now().After(w.next), false
	w.stamps = map[string]string{}
	var todo []*unit
	for _, u := range units {
		w.stamps[u.name] = u.stamp
		s := w.known[u.name]
		switch changed := s == nil || s.stamp != u.stamp; {
		case changed && before[u.name] != u.stamp && time.Since(u.newest) < quiet:
			unstable = true
		case changed:
			w.retry = firstRetry
			todo = append(todo, u)
		case s.again && again:
			todo = append(todo, u)
		}
	}
	same := before != nil && maps.EqualFunc(before, w.stamps, func(string, string) bool { return true })
	w.pruned = w.pruned && same && len(todo) == 0
	if !same && !w.next.IsZero() { // what was removed does not wait for other files
		w.retry, w.next = firstRetry, time.Now()
	}
	if prune := same && !unstable; len(todo) > 0 || prune && !w.pruned && (again || w.next.IsZero()) {
		err = w.pass(ctx, todo, prune)
		if ctx.Err() != nil {
			return 0
		}
		w.plan(err)
	}
	w.tell(w.known, err)
	if unstable || !w.pruned && w.next.IsZero() {
		return quiet
	}
	if w.next.IsZero() {
		return lookEvery
	}
	return min(lookEvery, max(quiet, time.Until(w.next)))
}

// plan decides when to try again.
func (w *watcher) plan(err error) {
	failed := err != nil
	for _, s := range w.known {
		failed = failed || s.again
	}
	w.next = time.Time{}
	if failed {
		w.next = time.Now().Add(w.retry)
		w.retry = min(2*w.retry, lastRetry)
	}
}

// batch is a unit that is being applied.
type batch struct {
	*state
	objects []object
}

// pass applies units, and deletes what is left over. The error is of the whole pass; those of the units are in their states.
func (w *watcher) pass(ctx context.Context, todo []*unit, prune bool) error {
	if w.cluster == nil {
		var err error
		if w.cluster, err = connect(w.client); err != nil {
			return err
		}
	}
	batches := make([]batch, 0, len(todo))
	for _, u := range todo {
		b := batch{state: &state{Manifest: control.Manifest{File: u.name}, stamp: u.stamp}}
		err := panics.Catch(func() (err error) { b.objects, err = u.read(); return err })
		if err != nil {
			b.Problems, b.keeps = strings.Split(withoutQuotes(err), "\n"), true
		}
		batches = append(batches, b)
	}
	now, err := scan(w.Dir)
	if err != nil {
		return err
	}
	batches = slices.DeleteFunc(batches, func(b batch) bool { // it has changed meanwhile
		changed := !slices.ContainsFunc(now, func(u *unit) bool { return u.name == b.File && u.stamp == b.stamp })
		prune = prune && !changed
		return changed
	})

	w.mapper.Reset()
	defer w.mapper.Reset() // gives back its memory
	client := w.CoreV1().ConfigMaps(namespace)
	inv, stored, err := load(ctx, client)
	if err != nil {
		return err
	}
	owners := map[id]string{}
	for name, s := range w.known {
		for _, i := range s.ids {
			if !slices.ContainsFunc(batches, func(b batch) bool { return b.File == name }) {
				owners[i] = name
			}
		}
	}
	for _, early := range []bool{true, false} {
		var all []*desired
		of := map[*desired]*state{}
		for _, b := range batches {
			for _, o := range b.objects {
				if first(o.GroupVersionKind().GroupKind()) != early {
					continue
				}
				d, err := w.resolve(o)
				if err == nil && owners[d.id] != "" {
					err = fmt.Errorf("it is in %s already", owners[d.id])
				} else if err != nil {
					b.keeps = true
				}
				if err != nil {
					b.refused(o, err)
					continue
				}
				owners[d.id], of[d] = b.File, b.state
				b.ids, all = append(b.ids, d.id), append(all, d)
				inv = inv.with(b.File, []id{d.id})
			}
		}
		if stored, err = inv.store(ctx, client, stored); err != nil { // before there are objects
			return err
		}
		for _, d := range all {
			if err := w.apply(ctx, d); err != nil {
				of[d].refused(d.object, err)
			} else if of[d].Objects++; d.mapping.GroupVersionKind.GroupKind() == definitions {
				w.established(ctx, d)
			}
		}
		if len(all) > 0 && early {
			w.mapper.Reset()
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for _, b := range batches {
		if b.keeps {
			b.Objects = len(inv[b.File])
		}
		w.done(b.state)
	}
	if !prune {
		return nil
	}
	return w.prune(ctx, inv, func(rest inventory) error { _, err := rest.store(ctx, client, stored); return err })
}

// quotes begins what errors of kustomize quote of the files. It may be a secret, and its end is not marked.
var quotes = regexp.MustCompile(`(?s)(?:literal sources \[|with config: ` + "`" + `|line \[[0-9 ]+\] has invalid utf8).*`)

// withoutQuotes is an error for logs and the status, up to what it quotes.
func withoutQuotes(err error) string {
	return quotes.ReplaceAllString(logbridge.WithoutValue(err.Error()), "…")
}

// refused records why an object was not applied.
func (s *state) refused(o object, err error) {
	text := fmt.Sprintf("%s %s: %s", o.GetKind(), o.GetName(), withoutQuotes(err))
	if o.where != "" {
		text = o.where + ": " + text
	}
	s.Problems, s.again = append(s.Problems, strings.ReplaceAll(text, "\n", "; ")), true
}

// done makes a state known, and logs it if it is new.
func (w *watcher) done(s *state) {
	before := w.known[s.File]
	w.known[s.File] = s
	if s.State = control.Applied; len(s.Problems) > 0 {
		s.State = control.Failed
	}
	now := time.Now().UTC().Truncate(time.Second)
	s.At = &now
	if before != nil && before.stamp == s.stamp && slices.Equal(before.Problems, s.Problems) {
		return
	}
	if len(s.Problems) > 0 {
		w.Log.Warnf("manifests: %s: %s", s.File, strings.Join(s.Problems, "; "))
	} else {
		w.Log.Infof("manifests: %s: applied, objects: %d", s.File, s.Objects)
	}
}

// prune deletes the objects that no file has any more, and stores what is left of the inventory.
func (w *watcher) prune(ctx context.Context, inv inventory, store func(inventory) error) error {
	maps.DeleteFunc(w.known, func(name string, _ *state) bool { return w.stamps[name] == "" })
	surplus := inv.surplus(w.known)
	failed := map[id]bool{}
	for _, early := range []bool{false, true} {
		for _, i := range slices.Sorted(maps.Keys(surplus)) {
			if kind, _, _ := i.split(); first(kind) != early {
				continue
			}
			deleted, err := w.remove(ctx, i)
			if err != nil {
				failed[i] = true
				s := w.known[surplus[i]]
				if s == nil {
					s = &state{Manifest: control.Manifest{File: surplus[i], State: control.Removing}}
					w.known[s.File] = s
				}
				s.again, s.Problems = true, append(s.Problems, fmt.Sprintf("cannot delete %s: %v", i, err))
			}
			if deleted {
				w.Log.Infof("manifests: %s: deleted %s", surplus[i], i)
			}
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	left := inventory{}
	for unit, ids := range inv {
		s := w.known[unit]
		for _, i := range ids {
			if failed[i] || s != nil && (s.keeps || slices.Contains(s.ids, i)) {
				left[unit] = append(left[unit], i)
			}
		}
	}
	w.pruned = len(failed) == 0
	return store(left)
}
