package election

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	componentconfig "k8s.io/component-base/config"

	writes "github.com/karve-k8s/karve/internal/fence"
)

// The tests have upstream's default times, and a clock of their own.
var settings = componentconfig.LeaderElectionConfiguration{
	LeaderElect: true, LeaseDuration: metav1.Duration{Duration: 15 * time.Second}, RenewDeadline: metav1.Duration{Duration: 10 * time.Second},
	RetryPeriod: metav1.Duration{Duration: 2 * time.Second}, ResourceLock: "leases", ResourceName: "test", ResourceNamespace: "kube-system",
}

// store has a lease, and records who acts.
type store struct {
	mu      sync.Mutex
	record  resourcelock.LeaderElectionRecord
	version int // 0: there is no lease
	deleted bool
	watches []func(holder string)
	acts    []act
}

// act is something that only the leader may do.
type act struct {
	server string
	term   int // of the lease
	at     time.Time
}

// lock is the way of a server to the store. While it is cut, requests hang until their context ends.
type lock struct {
	*store
	id      string
	version int
	cut     chan struct{} // closed: the way is open
	slow    *slow         // the next write; otherwise nil
	late    *slow         // a write that was broken off, and is still to be committed
}

// slow is a write that takes time.
type slow struct {
	takes     time.Duration
	begun     chan struct{} // closed when the write has begun
	afterRead bool          // if it is broken off, it is committed after the next read; otherwise before it
	commit    func()
}

var errAway = errors.New("no answer")

func (l *lock) reach(ctx context.Context) error {
	l.mu.Lock()
	way := l.cut
	l.mu.Unlock()
	select {
	case <-way:
		if ctx.Err() == nil {
			return nil
		}
		return fmt.Errorf("%w: %w", errAway, ctx.Err())
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errAway, ctx.Err())
	}
}

// sever cuts the way, or opens it again.
func (l *lock) sever(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cut {
		l.cut = make(chan struct{})
	} else {
		close(l.cut)
	}
}

func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if err := l.reach(ctx); err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	late := l.late
	if l.late = nil; late != nil && late.afterRead {
		defer late.commit()
	} else if late != nil {
		late.commit()
	}
	l.version = l.store.version
	if l.version == 0 || l.deleted {
		return nil, nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), "test")
	}
	r := l.record
	raw, err := json.Marshal(r)
	return &r, raw, err
}

func (l *lock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, r, true)
}

func (l *lock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, r, false)
}

func (l *lock) write(ctx context.Context, r resourcelock.LeaderElectionRecord, create bool) error {
	if err := l.reach(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.slow; s != nil {
		l.slow = nil
		l.mu.Unlock()
		close(s.begun)
		select {
		case <-time.After(s.takes):
			l.mu.Lock()
		case <-ctx.Done():
			l.mu.Lock()
			version := l.version
			s.commit = func() {
				if version == l.store.version {
					l.change(r, false)
				}
			}
			l.late = s
			return ctx.Err()
		}
	}
	if there := l.store.version > 0 && !l.deleted; there == create {
		return errors.New("it exists already, or not")
	} else if there && l.version != l.store.version {
		return apierrors.NewConflict(coordinationv1.Resource("leases"), "test", errors.New("it has been modified"))
	}
	if l.record.HolderIdentity != r.HolderIdentity && l.record.HolderIdentity != "" {
		r.LeaderTransitions = l.record.LeaderTransitions + 1
	}
	l.change(r, false)
	l.version = l.store.version
	return nil
}

// change is a write that nothing refuses. mu is held.
func (s *store) change(r resourcelock.LeaderElectionRecord, deleted bool) {
	s.record, s.deleted = r, deleted
	s.version++
	for _, changed := range s.watches {
		changed(r.HolderIdentity)
	}
}

// holder is the server that the lease names.
func (s *store) holder() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record.HolderIdentity
}

func (l *lock) look(ctx context.Context) (string, error) {
	if err := l.reach(ctx); err != nil {
		return "", err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.record.HolderIdentity, nil
}

func (l *lock) RecordEvent(string) {}
func (l *lock) Identity() string   { return l.id }
func (l *lock) Describe() string   { return "kube-system/test" }

// candidate is a server in a test. While it leads, it acts ten times a second.
type candidate struct {
	*Election
	lock    *lock
	standby chan struct{} // has a value once another leads
	leads   chan struct{} // has a value for each term
	inOrder atomic.Bool   // it was told to stop
	blind   atomic.Bool   // its watch is behind
	cancel  context.CancelFunc
	done    chan error
	log     strings.Builder
}

// pair returns two candidates: the first leads, and the second has seen that.
func pair() (s *store, first, second *candidate) {
	s = &store{}
	first = s.join("first")
	<-first.leads
	second = s.join("second")
	<-second.standby
	return s, first, second
}

func (s *store) join(name string) *candidate {
	c := &candidate{standby: make(chan struct{}, 100), leads: make(chan struct{}, 100), done: make(chan error, 1)}
	log := logrus.New()
	log.SetOutput(&c.log)
	c.Election = New(Config{Identity: name, Settings: settings, Work: "acts", Log: log})
	open := make(chan struct{})
	close(open)
	c.lock = &lock{store: s, id: name, cut: open}
	l := newLease(c.lock, c.lock.look, settings.LeaseDuration.Duration)
	s.mu.Lock()
	s.watches = append(s.watches, func(holder string) {
		if holder != name && !c.blind.Load() {
			l.wake()
		}
	})
	s.mu.Unlock()
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(context.Background())
	go func() {
		c.done <- c.candidate(ctx, l, func() { c.standby <- struct{}{} }, c.lead)
	}()
	return c
}

// lead acts through a fence, until the fence refuses. It goes on after its context has ended, as some
// of upstream's controllers do.
func (c *candidate) lead(ctx context.Context, term *Term) error {
	c.leads <- struct{}{}
	c.lock.mu.Lock()
	number := c.lock.version
	c.lock.mu.Unlock()
	config := term.Fence(&rest.Config{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
		c.lock.mu.Lock()
		defer c.lock.mu.Unlock()
		c.lock.acts = append(c.lock.acts, act{c.Identity, number, time.Now()})
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(""))}, nil
	})})
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	for range 10_000 {
		response, err := client.Get("http://localhost/")
		if err != nil {
			return nil
		}
		response.Body.Close()
		if ctx.Err() != nil && c.inOrder.Load() {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return errors.New("nobody stops it")
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// stop ends a candidate in order.
func (c *candidate) stop(t *testing.T) {
	t.Helper()
	c.inOrder.Store(true)
	c.cancel()
	if err := <-c.done; err != nil {
		t.Errorf("%s: %v", c.Identity, err)
	}
}

// oneAtATime checks that nobody acted after a later leader had.
func (s *store) oneAtATime(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := 1; i < len(s.acts); i++ {
		if a, b := s.acts[i-1], s.acts[i]; b.term < a.term {
			t.Errorf("%s acted at %v in the term of version %d, %v after %s in that of version %d", b.server, b.at, b.term, b.at.Sub(a.at), a.server, a.term)
		}
	}
	if len(s.acts) == 0 {
		t.Error("nobody acted")
	}
}

// A server that stops is followed immediately, although candidates ask every two seconds.
func TestHandover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, first, second := pair()
		time.Sleep(7 * time.Second)
		began := time.Now()
		first.stop(t)
		<-second.leads
		if took := time.Since(began); took > time.Second {
			t.Errorf("the second server leads %v after the first was told to stop", took)
		}
		if len(first.standby) > 0 {
			t.Error("the first server has seen another leader")
		}
		second.stop(t)
		s.oneAtATime(t)
		if s.record.HolderIdentity != "" {
			t.Errorf("the lease still has the holder %s", s.record.HolderIdentity)
		}
	})
}

// A server that has died is followed when its lease has expired: not before that, and not much later.
func TestDeadLeader(t *testing.T) {
	for i := range 20 { // candidates ask at random times
		synctest.Test(t, func(t *testing.T) {
			s, first, second := pair()
			time.Sleep(7*time.Second + time.Duration(i)*100*time.Millisecond)
			first.lock.sever(true) // it is dead: nobody hears of it again
			s.mu.Lock()
			renewed := s.record.RenewTime.Time
			s.mu.Unlock()
			<-second.leads
			took, lease := time.Since(renewed), settings.LeaseDuration.Duration
			if took < lease || took > lease+time.Second {
				t.Errorf("the second server leads %v after the last renewal, want %v", took, lease)
			}
			first.lock.sever(false)
			second.stop(t)
			first.stop(t)
			s.oneAtATime(t)
		})
	}
}

// A server that cannot reach the datastore stops before another may begin. When it is back, it waits
// for its turn, and leads again in the same process.
func TestLeaderIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, first, second := pair()
		for range 5 {
			leader, other := first, second
			if s.holder() == "second" {
				leader, other = second, first
			}
			time.Sleep(7 * time.Second)
			leader.lock.sever(true)
			<-other.leads
			leader.lock.sever(false)
			<-leader.standby
		}
		if text := first.log.String(); !strings.Contains(text, "no longer leads") || !strings.Contains(text, "is the datastore unreachable?") {
			t.Errorf("the log of the first server does not say that it has lost the lease:\n%s", text)
		}
		first.stop(t)
		second.stop(t)
		s.oneAtATime(t)
		changes := 0
		for i := 1; i < len(s.acts); i++ {
			if a, b := s.acts[i-1], s.acts[i]; a.server != b.server {
				changes++
				if gap := b.at.Sub(a.at); gap < time.Second {
					t.Errorf("%s acted %v before %s", a.server, gap, b.server)
				}
			}
		}
		if changes != 5 {
			t.Errorf("%d changes, want 5", changes)
		}
	})
}

// Somebody who deletes or clears the lease lets another server take it at once. The leader stops as soon as
// it can know: when its watch says so, or when it asks again.
func TestLeaseIsTakenAway(t *testing.T) {
	for _, deleted := range []bool{true, false} {
		for _, blind := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				s, first, second := pair()
				time.Sleep(7 * time.Second)
				first.blind.Store(blind)
				first.lock.sever(true) // so that the second is faster
				s.mu.Lock()
				s.change(resourcelock.LeaderElectionRecord{}, deleted)
				s.mu.Unlock()
				<-second.leads
				first.lock.sever(false)
				<-first.standby // which it does not report while it acts
				if text := first.log.String(); !strings.Contains(text, "has somebody changed or deleted the lease?") || strings.Count(text, "waits until it stops") != 1 {
					t.Errorf("deleted: %v, watch behind: %v: the log of the first server is\n%s", deleted, blind, text)
				}
				first.stop(t)
				time.Sleep(time.Second)
				second.stop(t)
				var began, last time.Time
				for _, a := range s.acts {
					if a.server == "first" {
						last = a.at
					} else if began.IsZero() {
						began = a.at
					}
				}
				limit := 200 * time.Millisecond
				if blind { // it asks again
					limit = settings.RetryPeriod.Duration * 2
				}
				if both := last.Sub(began); both > limit {
					t.Errorf("deleted: %v, watch behind: %v: two servers acted for %v, want at most %v", deleted, blind, both, limit)
				}
			})
		}
	}
}

// A server that is stopped during a write gives the lease back, whether the write is done by then, or was
// broken off and is committed all the same.
func TestStopDuringWrite(t *testing.T) {
	for _, test := range []struct {
		name      string
		takes     time.Duration
		acquires  bool // the write would make this server the leader
		afterRead bool
	}{
		{"short renewal", time.Second, false, true},
		{"long renewal", time.Hour, false, true},
		{"long renewal that is committed at once", time.Hour, false, false},
		{"short try", time.Second, true, true},
		{"long try that is committed at once", time.Hour, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{}
				hang := &slow{takes: test.takes, begun: make(chan struct{}), afterRead: test.afterRead}
				first := s.join("first")
				<-first.leads
				leader := first
				if test.acquires {
					leader = s.join("leader")
					<-leader.standby
				}
				time.Sleep(7 * time.Second)
				leader.lock.mu.Lock()
				leader.lock.slow = hang
				leader.lock.mu.Unlock()
				if test.acquires {
					first.stop(t)
				}
				<-hang.begun
				leader.stop(t)
				s.mu.Lock()
				if late := leader.lock.late; late != nil {
					late.commit()
				}
				s.mu.Unlock()
				if s.record.HolderIdentity != "" {
					t.Errorf("the lease still has the holder %s", s.record.HolderIdentity)
				}
				next := s.join("next")
				began := time.Now()
				<-next.leads
				if took := time.Since(began); took > time.Second {
					t.Errorf("the next server leads after %v", took)
				}
				next.stop(t)
			})
		})
	}
}

// alone is a candidate with its own work, on an empty store.
func alone(t *testing.T, lead func(context.Context, *Term, *lock) error) (way *lock, leads <-chan struct{}, stop func() error) {
	t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	open := make(chan struct{})
	close(open)
	way = &lock{store: &store{}, id: "me", cut: open}
	ctx, cancel := context.WithCancel(t.Context())
	begun, done := make(chan struct{}, 100), make(chan error, 1)
	e := New(Config{Identity: "me", Settings: settings, Work: "acts", Log: log})
	go func() {
		done <- e.candidate(ctx, newLease(way, way.look, settings.LeaseDuration.Duration), func() {}, func(ctx context.Context, term *Term) error {
			begun <- struct{}{}
			return lead(ctx, term, way)
		})
	}()
	return way, begun, func() error { cancel(); return <-done }
}

// The errors of a term that was lost are consequences, however soon they come.
func TestErrorOfALostTerm(t *testing.T) {
	for name, lead := range map[string]func(context.Context, *Term, *lock) error{
		"after the end":  func(ctx context.Context, _ *Term, _ *lock) error { <-ctx.Done(); return errors.New("cannot list") },
		"before the end": func(_ context.Context, term *Term, _ *lock) error { <-term.Done(); return errors.New("cannot list") },
		"fence": func(_ context.Context, term *Term, _ *lock) error {
			<-term.Done()
			return fmt.Errorf("list: %w", term.err())
		},
	} {
		for range 10 { // several channels are ready at the same time
			synctest.Test(t, func(t *testing.T) {
				way, leads, stop := alone(t, lead)
				for range 3 {
					<-leads
					way.sever(true)
					time.Sleep(20 * time.Second)
					way.sever(false)
				}
				<-leads
				way.sever(true) // for good: the work of one more term would wait for an end that does not come
				time.Sleep(20 * time.Second)
				if err := stop(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	}
}

// A server that cannot begin while the datastore is away tries again. Other failures end it.
func TestWorkCannotBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failing, tried := true, 0
		_, leads, stop := alone(t, func(ctx context.Context, _ *Term, way *lock) error {
			if tried++; failing {
				way.sever(true)
				time.AfterFunc(5*time.Second, func() { failing = false; way.sever(false) })
				return errors.New("cannot list")
			}
			<-ctx.Done()
			return nil
		})
		<-leads
		<-leads
		synctest.Wait()
		if err := stop(); err != nil || tried != 2 {
			t.Errorf("%d terms, error %v, want two", tried, err)
		}
	})
	for _, test := range []struct {
		err   error
		again bool
	}{
		{apierrors.NewServiceUnavailable("no datastore"), true},
		{fmt.Errorf("list: %w", apierrors.NewInternalError(errors.New("no datastore"))), true},
		{fmt.Errorf("list: %w", ErrOver), true}, // faster than the end of the term
		{fmt.Errorf("%w: a controller", ErrRuns), false},
		{errors.New("no key"), false},
	} {
		synctest.Test(t, func(t *testing.T) {
			failed := false
			_, leads, stop := alone(t, func(ctx context.Context, _ *Term, _ *lock) error {
				if !failed {
					failed = true
					return test.err
				}
				<-ctx.Done()
				return nil
			})
			<-leads
			if test.again {
				<-leads
			}
			synctest.Wait()
			if err := stop(); test.again && err != nil || !test.again && !errors.Is(err, test.err) {
				t.Errorf("%v: Run has ended with %v", test.err, err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) { // also after the term
		way, leads, stop := alone(t, func(ctx context.Context, _ *Term, _ *lock) error { <-ctx.Done(); return ErrRuns })
		<-leads
		way.sever(true)
		time.Sleep(20 * time.Second)
		if err := stop(); !errors.Is(err, ErrRuns) {
			t.Errorf("got %v, want %v", err, ErrRuns)
		}
		way.sever(false)
	})
}

// A late event of the time before a term does not end the term.
func TestWatchIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		first := s.join("first")
		<-first.leads
		for range 20 {
			time.Sleep(300 * time.Millisecond)
			s.mu.Lock()
			s.watches[0]("an earlier leader")
			s.mu.Unlock()
		}
		if text := first.log.String(); strings.Contains(text, "no longer leads") {
			t.Errorf("the log of the first server is\n%s", text)
		}
		first.stop(t)
	})
}

// If the elector hangs, the term ends when others may take the lease.
func TestTermEndsWithItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		l := newLease(&lock{id: "me"}, nil, 15*time.Second)
		l.held = l.clock.now().add(15 * time.Second)
		term := newTerm(l.until(), l.clock)
		l.extend(term)
		time.Sleep(10 * time.Second)
		term.extend(suspendedToo.now().add(15 * time.Second))
		<-term.Done()
		if took := time.Since(began); took != 25*time.Second {
			t.Errorf("the term ended after %v, want 25s", took)
		}
		if err := term.err(); !errors.Is(err, ErrOver) {
			t.Errorf("got %v, want %v", err, ErrOver)
		}
	})
}

// A write of the lease can take longer than the lease lasts.
func TestTermThatIsOverAtItsBegin(t *testing.T) {
	for range 1000 {
		term := newTerm(suspendedToo.now().add(-time.Second), suspendedToo)
		<-term.Done()
		term.end(errStopped)
		if err := context.Cause(term.ctx); err != errLost {
			t.Fatalf("got %v, want %v", err, errLost)
		}
	}
}

// While a machine is suspended, timers and the monotonic clock stand still, and others take the lease. The server
// must not act when it goes on, whether it was suspended in its term or while it renewed its lease.
func TestMachineWasSuspended(t *testing.T) {
	var suspended time.Duration
	boot := clock(func() time.Duration { return time.Hour + suspended })
	begin := func() (*lease, *Term) {
		open := make(chan struct{})
		close(open)
		l := newLease(&lock{store: &store{}, id: "me", cut: open}, nil, 15*time.Second)
		l.clock = boot
		if err := l.Create(context.Background(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"}); err != nil {
			t.Fatal(err)
		}
		term := newTerm(l.until(), boot)
		l.extend(term)
		suspended += 14 * time.Second
		if err := term.err(); err != nil || boot.past(l.until()) {
			t.Errorf("the term has ended after 14 of 15 seconds: %v", err)
		}
		return l, term
	}
	refused := func(term *Term) {
		t.Helper()
		client, err := rest.HTTPClientFor(term.Fence(&rest.Config{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
			return nil, errors.New("it was sent")
		})}))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Get("http://localhost/"); !errors.Is(err, ErrOver) {
			t.Errorf("a request: got %v, want %v", err, ErrOver)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		l, term := begin()
		suspended += 2 * time.Second
		if !boot.past(l.until()) {
			t.Error("a term could begin")
		}
		refused(term)

		l, term = begin()
		l.Interface = renews{l.Interface, func() { suspended += 16 * time.Second }}
		if err := l.Update(context.Background(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"}); err != nil {
			t.Fatal(err)
		}
		refused(term)
	})
}

// renews is a lock at which something happens during an update.
type renews struct {
	resourcelock.Interface
	during func()
}

func (r renews) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	defer r.during()
	return r.Interface.Update(ctx, record)
}

// The clock goes on at the speed of the others.
func TestClock(t *testing.T) {
	for name, c := range map[string]clock{"suspendedToo": suspendedToo, "wallClock": wallClock} {
		before := c()
		began := time.Now()
		for time.Since(began) < 20*time.Millisecond {
			time.Sleep(time.Millisecond)
		}
		if took := c() - before; took < 10*time.Millisecond || took > time.Minute {
			t.Errorf("%s: %v passed in about 20 ms", name, took)
		}
		if m := c.now(); c.past(m.add(time.Hour)) || !c.past(m.add(-time.Second)) || !c.past(moment{}) {
			t.Errorf("%s: past is wrong", name)
		}
	}
}

// A request that is under way ends with the term, also if what sends it waits for something else.
func TestFenceEndsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, deaf := range []bool{false, true} {
			term := newTerm(suspendedToo.now().add(time.Hour), suspendedToo)
			closed := make(chan struct{})
			client, err := rest.HTTPClientFor(term.Fence(&rest.Config{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				if !deaf {
					close(closed)
					return nil, r.Context().Err()
				}
				time.Sleep(30 * time.Second)
				return &http.Response{StatusCode: http.StatusOK, Body: closing{http.NoBody, func() { close(closed) }}}, nil
			})}))
			if err != nil {
				t.Fatal(err)
			}
			failed := make(chan error)
			go func() {
				_, err := client.Get("http://localhost/")
				failed <- err
			}()
			synctest.Wait()
			term.end(errLost)
			began := time.Now()
			if err := <-failed; !errors.Is(err, ErrOver) || time.Since(began) > 0 {
				t.Errorf("deaf %v: got %v after %v, want %v at once", deaf, err, time.Since(began), ErrOver)
			}
			<-closed
		}
	})
}

// closing calls a function when it is closed.
type closing struct {
	io.ReadCloser
	closed func()
}

func (c closing) Close() error { c.closed(); return nil }

// The datastore refuses the write of a request that has passed the fence, as soon as others may lead. It does not
// depend on the goroutine that ends the request: in a process that was stopped, it may run late.
func TestFenceRefusesLateWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term := newTerm(suspendedToo.now().add(time.Hour), suspendedToo)
		client, err := rest.HTTPClientFor(term.Fence(&rest.Config{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			if err := writes.Check(r.Context()); err != nil {
				t.Errorf("during the term: got %v", err)
			}
			term.timer.Stop()
			time.Sleep(time.Hour + 1)
			if err := r.Context().Err(); err != nil {
				t.Errorf("the request has ended: %v", err)
			}
			return nil, writes.Check(r.Context())
		})}))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Get("http://localhost/"); !errors.Is(err, ErrOver) {
			t.Errorf("got %v, want %v", err, ErrOver)
		}
	})
}

// What follows an election runs in each term, and not between them.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		first := s.join("first")
		<-first.leads
		second := s.join("second")
		ctx, cancel := context.WithCancel(t.Context())
		standbys, begins, ends, done := make(chan struct{}, 100), make(chan struct{}, 100), make(chan struct{}, 100), make(chan error, 1)
		go func() {
			done <- second.Follow(ctx, func() { standbys <- struct{}{} }, func(ctx context.Context, term *Term) error {
				begins <- struct{}{}
				<-ctx.Done()
				ends <- struct{}{}
				if term.err() != nil {
					return errors.New("because the term is over")
				}
				return nil
			})
		}()
		<-standbys
		first.lock.sever(true)
		<-begins
		first.lock.sever(false)
		<-first.standby
		second.lock.sever(true)
		<-ends
		<-first.leads
		second.lock.sever(false)
		first.stop(t)
		<-begins
		cancel()
		<-ends
		if err := <-done; err != nil {
			t.Error(err)
		}
		second.stop(t)
		if len(begins) > 0 {
			t.Errorf("%d more terms", len(begins))
		}
	})
}

// The failure of what the leader runs ends the candidacy, and another server follows immediately.
func TestFailureOfTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		open := make(chan struct{})
		close(open)
		log := logrus.New()
		log.SetOutput(io.Discard)
		e := New(Config{Identity: "first", Settings: settings, Work: "fails", Log: log})
		want := errors.New("no key")
		way := &lock{store: s, id: "first", cut: open}
		err := e.candidate(t.Context(), newLease(way, way.look, settings.LeaseDuration.Duration), func() {},
			func(context.Context, *Term) error { return want })
		if !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
		second := s.join("second")
		began := time.Now()
		<-second.leads
		if took := time.Since(began); took > time.Second {
			t.Errorf("the second server leads after %v", took)
		}
		second.stop(t)
	})
}
