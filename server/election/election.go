// Package election lets one of several servers act at a time: the one that holds a lease.
//
// Upstream's client-go/tools/leaderelection does the work. [Election.Run] adds what one process
// needs that goes on after it has lost the lease: work that can be started again, a [Term] that
// refuses the requests of the work that is over, and a watch that wakes a candidate when the
// leader has stopped.
package election

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	componentconfig "k8s.io/component-base/config"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection" // leader_election_master_status and its kin
	"k8s.io/utils/ptr"
)

// Config describes an election.
type Config struct {
	// Identity is what the lease names while this server leads: see [NewIdentity].
	Identity string
	// Settings are upstream's options --leader-elect… of the component.
	Settings componentconfig.LeaderElectionConfiguration
	// Component reports the events, such as kube-controller-manager.
	Component string
	// Work is what the leader does, for the log, such as "runs the controllers".
	Work string
	Log  *logrus.Logger
}

// Election is one server's candidacy. A nil *Election means that nobody else can act.
type Election struct {
	Config

	mu      sync.Mutex
	now     state
	changed chan struct{} // closed and replaced when now changes
}

// state is what a candidate knows.
type state struct {
	term   *Term  // of this server; nil while it does not lead
	leader string // the identity of the holder; empty: unknown
}

// New returns a candidacy that has not begun.
func New(c Config) *Election { return &Election{Config: c, changed: make(chan struct{})} }

// NewIdentity returns an identity as upstream's components have it: the name of the machine, and a part
// that tells apart two servers, and two lives of one.
func NewIdentity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("read the name of this machine: %w", err)
	}
	return host + "_" + string(uuid.NewUUID()), nil
}

// Run is a candidate for the lease until ctx ends. While this server leads, Run calls lead, once
// for each term. The context of lead ends with the term, or when ctx ends. Run calls standby when
// it sees that another server leads.
//
// If lead returns by itself, Run gives the lease back and returns its error. If the datastore is
// unavailable, Run goes on as a candidate instead. The error of a lead whose term is over is a consequence
// of that, and Run goes on, too. An error that wraps [ErrRuns] always ends Run.
//
// When ctx ends, the lease is given back as soon as lead has returned. Whoever follows the election
// must have stopped by then.
func (e *Election) Run(ctx context.Context, client *rest.Config, standby func(), lead func(context.Context, *Term) error) error {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	l, err := e.lease(client, broadcaster)
	if err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	if err := e.watch(watching, client, l.wake); err != nil {
		return err
	}
	return e.candidate(ctx, l, standby, lead)
}

// lease returns the lock, whose requests have upstream's time limit: one that hangs does not cost
// the leader its lease.
func (e *Election) lease(client *rest.Config, events record.EventBroadcaster) (*lease, error) {
	limited := rest.CopyConfig(client)
	limited.Timeout = max(time.Second, e.Settings.RenewDeadline.Duration/2)
	clients, err := kubernetes.NewForConfig(rest.AddUserAgent(limited, "leader-election"))
	if err != nil {
		return nil, fmt.Errorf("create client for leader election: %w", err)
	}
	events.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: clients.CoreV1().Events("")})
	lock, err := resourcelock.New(e.Settings.ResourceLock, e.Settings.ResourceNamespace, e.Settings.ResourceName,
		clients.CoreV1(), clients.CoordinationV1(), resourcelock.ResourceLockConfig{
			Identity: e.Identity, EventRecorder: events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: e.Component}),
		})
	if err != nil {
		return nil, fmt.Errorf("leader election: %w", err)
	}
	look := func(ctx context.Context) (string, error) {
		found, err := clients.CoordinationV1().Leases(e.Settings.ResourceNamespace).Get(ctx, e.Settings.ResourceName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		return ptr.Deref(found.Spec.HolderIdentity, ""), nil
	}
	return newLease(lock, look, e.Settings.LeaseDuration.Duration), nil
}

// watch calls changed when another server has changed the lease. Upstream's candidates ask every 2 to
// 4.4 seconds.
func (e *Election) watch(ctx context.Context, client *rest.Config, changed func()) error {
	clients, err := kubernetes.NewForConfig(rest.AddUserAgent(rest.CopyConfig(client), "leader-election"))
	if err != nil {
		return fmt.Errorf("create client for leader election: %w", err)
	}
	look := func(object any) {
		if l, ok := object.(*coordinationv1.Lease); ok && ptr.Deref(l.Spec.HolderIdentity, "") != e.Identity {
			changed()
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(clients.CoordinationV1().RESTClient(), "leases", e.Settings.ResourceNamespace,
			fields.OneTermEqualSelector("metadata.name", e.Settings.ResourceName)),
		ObjectType: &coordinationv1.Lease{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: look, UpdateFunc: func(_, object any) { look(object) }, DeleteFunc: func(any) { changed() },
		},
	})
	go informer.RunWithContext(ctx)
	return nil
}

// candidate campaigns again and again. It needs no client, so tests can bring their own lease.
func (e *Election) candidate(ctx context.Context, l *lease, standby func(), lead func(context.Context, *Term) error) error {
	l.seen = func(holder string) {
		if e.sees(holder) {
			standby()
		}
	}
	defer l.expiry.Stop()
	won := make(chan struct{}, 1)
	// One elector for all campaigns: it knows for how long nobody has renewed the lease.
	config := leaderelection.LeaderElectionConfig{
		Lock: l, Name: e.Settings.ResourceName,
		LeaseDuration: e.Settings.LeaseDuration.Duration,
		RenewDeadline: e.Settings.RenewDeadline.Duration,
		RetryPeriod:   e.Settings.RetryPeriod.Duration,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {
				select {
				case won <- struct{}{}:
				default: // of a campaign that was woken as it won
				}
			},
			OnStoppedLeading: func() {},
		},
		// Upstream would try to release a lease that it could not renew, and tell nobody meanwhile that it
		// is lost.
		ReleaseOnCancel: false,
	}
	elector, err := leaderelection.NewLeaderElector(config)
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	// The metric of an elector whose context ends goes on to say that it leads. That of a new one says that it does not.
	l.over = func() { _, _ = leaderelection.NewLeaderElector(config) } // there was no error before
	defer l.release(ctx)
	for ctx.Err() == nil {
		if err := e.campaign(ctx, elector, l, won, lead); err != nil {
			return err
		}
	}
	return nil
}

// campaign is a candidate until this server has led once, the lease has changed, or ctx ends.
func (e *Election) campaign(ctx context.Context, elector *leaderelection.LeaderElector, l *lease, won <-chan struct{}, lead func(context.Context, *Term) error) error {
	// The lease is renewed until lead has returned, which is after the end of ctx.
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	select {
	case <-won: // the last campaign was woken as it won
	default:
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		elector.Run(renewing)
	}()
	breakOff := func() { stop(); <-over; l.over() }
	giveUp := func() {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
		defer cancel()
		l.between(limit, stop) // nobody knows the effect of a request that is broken off
		breakOff()
	}
	select {
	case <-won:
	case <-over: // lost as soon as won
		return nil
	case <-l.woken: // the next campaign begins with a try
		l.between(ctx, stop)
		giveUp()
		return nil
	case <-ctx.Done():
		giveUp()
		return nil
	}
	if l.clock.past(l.until()) { // an earlier campaign has told late that it had won
		giveUp()
		return nil
	}
	term := newTerm(l.until(), l.clock)
	l.extend(term)
	leading, quit := context.WithCancel(context.WithoutCancel(ctx))
	defer quit()
	e.set(state{term, e.Identity})
	guarded := make(chan struct{})
	go func() { defer close(guarded); l.guard(term) }()
	defer func() { <-guarded }() // every way on ends the term
	e.Log.Infof("this server leads and %s (lease %s)", e.Work, l.Describe())
	ended := make(chan error, 1)
	go func() { ended <- lead(leading, term) }()

	var result error
	select {
	case result = <-ended:
	case <-ctx.Done():
		quit()
		result = <-ended
	case <-over:
		return e.lost(l, term, quit, breakOff, ended)
	case <-term.Done(): // the lease names another, or upstream's elector hangs
		return e.lost(l, term, quit, breakOff, ended)
	}
	if term.err() != nil || errors.Is(result, ErrOver) { // the work was faster, or this server stops meanwhile
		ended <- result
		return e.lost(l, term, quit, breakOff, ended)
	}
	term.end(errStopped)
	e.set(state{})
	giveUp()
	l.extend(nil)
	switch {
	case ctx.Err() != nil:
		return result
	case result == nil:
		return errors.New("the leader's work has ended")
	case errors.Is(result, ErrRuns) || l.release(ctx) && !unavailable(result):
		return result
	}
	e.Log.Warnf("this server cannot lead now, and tries again: %v", result)
	select { // another may be able to
	case <-time.After(e.Settings.RetryPeriod.Duration):
	case <-ctx.Done():
	}
	return nil
}

// unavailable reports whether err is the API server's answer while it cannot reach the datastore.
func unavailable(err error) bool {
	return apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsInternalError(err) || errors.Is(err, context.DeadlineExceeded)
}

// lost ends a term that others do not wait for any more.
func (e *Election) lost(l *lease, term *Term, quit, breakOff func(), ended <-chan error) error {
	term.end(errLost) // first of all
	e.set(state{})
	quit()
	if errors.Is(term.err(), errTaken) {
		e.Log.Warnf("this server no longer leads and no longer %s: the lease %s no longer names it; has somebody changed or deleted the lease?", e.Work, l.Describe())
	} else {
		e.Log.Warnf("this server no longer leads and no longer %s: it has not renewed the lease %s for %v; is the datastore unreachable? Was this machine suspended?",
			e.Work, l.Describe(), e.Settings.RenewDeadline.Duration)
	}
	breakOff()
	l.extend(nil)
	err := <-ended
	e.set(state{}) // who was seen since then is seen again: only now does this server wait
	if errors.Is(err, ErrRuns) {
		return fmt.Errorf("lost the lease %s: %w", l.Describe(), err)
	}
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, ErrOver) {
		e.Log.Infof("what this server did while it led has ended with: %v", err)
	}
	return nil
}

// sees records the holder that the lease names. It reports whether that is news, and another
// server. While this one acts, it does not wait for another, and its term ends first.
func (e *Election) sees(holder string) bool {
	e.mu.Lock()
	known := e.now
	e.mu.Unlock()
	if known.term != nil || holder == e.Identity || holder == "" || known.leader == holder {
		return false
	}
	e.set(state{leader: holder})
	e.Log.Infof("%s leads and %s: this server waits until it stops", holder, e.Work)
	return true
}

func (e *Election) set(now state) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now = now
	close(e.changed)
	e.changed = make(chan struct{})
}

// Follow does work that only the leader may do, beside what [Election.Run] runs. It calls work
// in each term, with a context that ends with the term. Follow calls standby when it sees that
// another server leads. It returns when ctx has ended, or with the error of a work whose term is not
// over. Follow must return before the context of Run ends.
//
// Without an election, Follow is work, once.
func (e *Election) Follow(ctx context.Context, standby func(), work func(context.Context, *Term) error) error {
	if e == nil {
		return work(ctx, nil)
	}
	for ctx.Err() == nil {
		e.mu.Lock()
		now, changed := e.now, e.changed
		e.mu.Unlock()
		if now.term != nil {
			if err := now.term.during(ctx, work); err != nil {
				return err
			}
		} else if now.leader != "" {
			standby()
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return nil
}
