// Package manifests applies the files of a directory to the cluster. It deletes nothing by itself: it reports the objects that no file
// describes any more, and deletes them when told to.
package manifests

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/internal/panics"
	"github.com/karve-k8s/karve/server/election"
)

// How often the directory is looked at, how soon after a change, and when what has failed is tried again.
const (
	lookEvery  = 3 * time.Second
	lookSoon   = 500 * time.Millisecond
	firstRetry = time.Second
	lastRetry  = time.Minute
)

var (
	failedFiles = metrics.NewGauge(&metrics.GaugeOpts{
		Name: "karve_manifests_failed", StabilityLevel: metrics.ALPHA,
		Help: "Number of manifest files that have a problem; one more if the directory has.",
	})
	registerMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(failedFiles) })
)

// Options is the configuration of the part.
type Options struct {
	Dir string
	// Election is of the server that applies; nil: no other can.
	Election *election.Election
	// Connect returns an administrator's client. It is called in each term.
	Connect func() *rest.Config
	// Changed is called when files have been applied or objects deleted.
	Changed func()
	Log     *logrus.Logger
}

// Manifests is the part that applies the files.
type Manifests struct {
	Options

	one  chan struct{}   // has a value while somebody uses the watcher
	now  *watcher        // nil while this server does not apply files
	term context.Context // of now

	mu      sync.Mutex
	status  control.Manifests
	standby bool // another server leads
}

// New returns the part. It looks at the directory in Run.
func New(o Options) *Manifests { return &Manifests{Options: o, one: make(chan struct{}, 1)} }

// Run applies the files while this server leads, until ctx ends. It is ready immediately: no file keeps a server from
// becoming ready.
func (m *Manifests) Run(ctx context.Context, ready func()) error {
	registerMetrics()
	ready()
	return m.Election.Follow(ctx, func() { m.tell(nil, nil) }, m.lead) // nothing stays of a former term
}

// lead applies the files during a term.
func (m *Manifests) lead(ctx context.Context, term *election.Term) error {
	set := func(w *watcher) {
		m.one <- struct{}{}
		m.now, m.term = w, ctx
		<-m.one
	}
	w := &watcher{Manifests: m, client: term.Fence(m.Connect()), known: map[string]*state{}, logged: map[string]string{}}
	set(w)
	defer set(nil)
	for {
		next := lookEvery
		err := m.during(ctx, func(ctx context.Context, w *watcher) error { next = w.look(ctx, settled); return nil })
		if err != nil && ctx.Err() == nil {
			m.tell(w, err)
		}
		select {
		case <-time.After(next):
		case <-ctx.Done():
			return nil
		}
	}
}

// during calls do while this server applies the files, and nothing else does. ctx ends with the term.
func (m *Manifests) during(ctx context.Context, do func(context.Context, *watcher) error) error {
	select {
	case m.one <- struct{}{}:
		defer func() { <-m.one }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if m.now == nil {
		return errors.New("this server does not apply manifests now: another one leads, as karve status says, or it is not ready yet")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.term, cancel)()
	return panics.Catch(func() error { return do(ctx, m.now) })
}

// Status returns the state of each file.
func (m *Manifests) Status() control.Manifests {
	m.mu.Lock()
	now, standby := m.status, m.standby
	m.mu.Unlock()
	if standby {
		if _, err := os.Stat(m.Dir); err == nil {
			now.Problem = control.AnotherLeads
		}
	}
	return now
}

// Apply applies all files, also those that have not changed, and returns their states.
func (m *Manifests) Apply(ctx context.Context) (control.Manifests, error) {
	err := m.during(ctx, func(ctx context.Context, w *watcher) error { w.look(ctx, everything); return ctx.Err() })
	return m.Status(), err
}

// tell makes the status, and logs what is new. Without a watcher, another server leads.
func (m *Manifests) tell(w *watcher, problem error) {
	now, failed := control.Manifests{Dir: m.Dir}, 0
	if problem != nil {
		now.Problem = withoutQuotes(problem)
	}
	if w != nil {
		if problem != nil {
			failed++
		}
		for _, name := range slices.Sorted(maps.Keys(w.known)) {
			file := w.known[name].told()
			if now.Files = append(now.Files, file); file.State == control.Failed {
				failed++
			}
		}
		for _, s := range w.strays {
			now.Strays = append(now.Strays, s.Object)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if w != nil && problem != nil && now.Problem != m.status.Problem {
		m.Log.Warnf("manifests: %s", now.Problem)
	}
	if text := now.InNoFile(); text != "" && text != m.status.InNoFile() {
		m.Log.Infof("manifests: %s", text)
	}
	m.status, m.standby = now, w == nil
	failedFiles.Set(float64(failed))
}

// watcher applies the files during a term.
type watcher struct {
	*Manifests
	client   *rest.Config
	*cluster // nil until something is to be done

	known  map[string]*state // by the names of the units
	stamps map[string]string // of the last look; nil: there was none, or it failed
	strays []control.Stray   // the objects that no file describes any more
	logged map[string]string // of each unit
	retry  time.Duration
	next   time.Time // of the next pass without a unit that has changed; zero: none is necessary
}

// scope is which units a look applies.
type scope int

const (
	settled    scope = iota // those that have changed, once two looks have seen the same: a file may still be being written
	changed                 // those that have changed or failed
	everything              // all
)

// look applies what is in the scope, and returns how long to wait until the next look.
func (w *watcher) look(ctx context.Context, s scope) time.Duration {
	units, err := scan(w.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.stamps, w.strays = nil, nil
		w.tell(w, err)
		return lookEvery
	}
	todo, pending := w.choose(units, s)
	if len(todo) > 0 || w.due() && !pending {
		err := w.pass(ctx, todo, !pending)
		if w.plan(err); pending || ctx.Err() != nil { // the client that asked may have gone away
			w.next = time.Now()
		}
		if len(todo) > 0 {
			w.Changed()
		}
		if ctx.Err() == nil {
			w.tell(w, err)
		}
	}
	switch {
	case pending:
		return lookSoon
	case w.next.IsZero():
		return lookEvery
	}
	return min(lookEvery, max(lookSoon, time.Until(w.next)))
}

// due reports whether it is time to try again.
func (w *watcher) due() bool { return !w.next.IsZero() && !time.Now().Before(w.next) }

// choose forgets the units that are gone, and returns those that are to be applied now. Others are pending. Any change makes what has
// failed try again: it may have waited for that.
func (w *watcher) choose(units []*unit, s scope) (todo []*unit, pending bool) {
	before := w.stamps
	w.stamps = map[string]string{}
	for _, u := range units {
		w.stamps[u.name] = u.stamp
	}
	maps.DeleteFunc(w.known, func(name string, _ *state) bool { return w.stamps[name] == "" })
	if before == nil || !maps.Equal(before, w.stamps) {
		w.retry, w.next = firstRetry, time.Now()
	}
	for _, u := range units {
		k := w.known[u.name]
		fresh := k == nil || k.stamp != u.stamp
		switch {
		case s == everything, fresh && (s == changed || before == nil || before[u.name] == u.stamp):
			todo = append(todo, u)
		case fresh:
			pending = true
		case k.again && (s == changed || w.due()):
			todo = append(todo, u)
		}
	}
	return todo, pending
}

// plan decides when to try again. Objects in no file may be deleted by somebody else: then nothing is to be reported.
func (w *watcher) plan(err error) {
	failed := err != nil
	for _, s := range w.known {
		failed = failed || s.again
	}
	switch w.next = (time.Time{}); {
	case failed:
		w.next = time.Now().Add(w.retry)
		w.retry = min(2*w.retry, lastRetry)
	case len(w.strays) > 0:
		w.next = time.Now().Add(lastRetry)
	}
}

// state is what is known of a unit.
type state struct {
	control.Manifest // its problems are those of the unit itself
	stamp            string
	ids              []id
	shared           []string // problems: other units describe the same objects
	partial          bool     // it may describe more objects, since a part cannot be read or its kind is not there
	again            bool     // something was refused, and is tried again
}

// told is the state for people.
func (s *state) told() control.Manifest {
	out := s.Manifest
	out.Problems = slices.Concat(s.Problems, s.shared)
	out.State = cmp.Or(map[bool]string{true: control.Failed}[len(out.Problems) > 0], control.Applied)
	return out
}
