package external

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/internal/fence"
)

// scripted answers a transaction when it is told to.
type scripted struct {
	begun chan []string // the keys of a transaction
	fail  chan error    // its error, or nil
	next  int64
}

func (s *scripted) insert(_ context.Context, batch []*write, _ *keyRange, _ int64) (revisions []int64, err error) {
	var keys []string
	for _, one := range batch {
		keys = append(keys, one.key)
	}
	s.begun <- keys
	if err := <-s.fail; err != nil {
		return nil, err
	}
	for range batch {
		s.next++
		revisions = append(revisions, s.next)
	}
	return revisions, nil
}

func (*scripted) ping(context.Context) error { return nil }
func (*scripted) primary() *sql.DB           { return nil }
func (*scripted) close()                     {}

// write starts a write.
func (s *scripted) write(ctx context.Context, w *writer, key string) <-chan written {
	answer := make(chan written, 1)
	go func() { answer <- w.insert(&write{ctx: ctx, key: key}) }()
	return answer
}

func startWriter(t *testing.T) (*scripted, *writer) {
	s := &scripted{begun: make(chan []string), fail: make(chan error)}
	ctx, cancel := context.WithCancel(context.Background())
	w := newWriter(ctx, s)
	var work sync.WaitGroup
	work.Go(w.run)
	t.Cleanup(func() { cancel(); work.Wait() })
	return s, w
}

// wait returns the keys of the next transaction.
func (s *scripted) wait(t *testing.T) []string {
	t.Helper()
	keys := eventually.Receive(t, "a transaction", s.begun)
	slices.Sort(keys)
	return keys
}

func TestWritesThatWaitAreOneTransaction(t *testing.T) {
	s, w := startWriter(t)
	first := s.write(t.Context(), w, "first")
	s.wait(t)
	var batch []*write
	for _, key := range []string{"a", "b", "c"} {
		batch = append(batch, &write{ctx: t.Context(), key: key, answer: make(chan written, 1)})
		w.queue <- batch[len(batch)-1]
	}
	s.fail <- nil
	if got := eventually.Receive(t, "the first", first); got.revision != 1 || got.err != nil {
		t.Errorf("the first: %+v, want revision 1", got)
	}
	if keys := s.wait(t); !slices.Equal(keys, []string{"a", "b", "c"}) {
		t.Errorf("a transaction of %v, want all that wait", keys)
	}
	s.fail <- nil
	for i, one := range batch {
		if got := eventually.Receive(t, one.key, one.answer); got.revision != int64(i+2) || got.err != nil {
			t.Errorf("%s: %+v, want revision %d", one.key, got, i+2)
		}
	}
}

func TestATransactionOfWritesIsBounded(t *testing.T) {
	w := newWriter(t.Context(), &scripted{})
	large := make([]byte, batchBytes/2)
	for range 4 {
		w.queue <- &write{value: large}
	}
	if n := len(w.waiting(<-w.queue)); n != 2 {
		t.Errorf("%d large writes in a transaction, want 2", n)
	}
	if n := len(w.waiting(<-w.queue)); n != 2 {
		t.Errorf("%d large writes in a transaction, want the other 2", n)
	}
}

// commitOf commits a batch, as if its writes had waited together.
func commitOf(w *writer, batch ...*write) {
	for _, one := range batch {
		one.answer = make(chan written, 1)
	}
	w.commit(batch)
}

// refusing is a database with an answer to each transaction.
type refusing struct {
	scripted
	answer  func(ctx context.Context, batch []*write) error
	batches int
}

func (r *refusing) insert(ctx context.Context, batch []*write, _ *keyRange, _ int64) ([]int64, error) {
	r.batches++
	if err := r.answer(ctx, batch); err != nil {
		return nil, err
	}
	return slices.Repeat([]int64{1}, len(batch)), nil
}

// writesOf is n writes, of which the one with the index bad has the key bad.
func writesOf(ctx context.Context, n, bad int) (batch []*write) {
	for i := range n {
		one := &write{ctx: ctx, key: "good"}
		if i == bad {
			one.key = "bad"
		}
		batch = append(batch, one)
	}
	return batch
}

func TestAWriteThatIsRefusedFailsAlone(t *testing.T) {
	full := errors.New("too large")
	table := &refusing{answer: func(_ context.Context, batch []*write) error {
		if slices.ContainsFunc(batch, func(one *write) bool { return one.key == "bad" }) {
			return full
		}
		return nil
	}}
	for _, size := range []int{1, 2, batchWrites} {
		for _, bad := range []int{0, size - 1} {
			batch := writesOf(t.Context(), size, bad)
			all := slices.Clone(batch)
			commitOf(newWriter(t.Context(), table), batch...)
			for i, one := range all {
				got := <-one.answer
				if i == bad && (!errors.Is(got.err, full) || got.unknown) || i != bad && (got.err != nil || got.revision != 1) {
					t.Errorf("write %d of %d: %+v, want that only %d fails", i, size, got, bad)
				}
			}
		}
	}
}

// What is left of a batch that was refused is not tried on a connection that has gone, nor after the end.
func TestTheRestOfABatchIsNotWritten(t *testing.T) {
	gone := errors.New("gone")
	for name, test := range map[string]struct {
		second error // of the second transaction
		end    bool
		want   error // of the writes after it
	}{
		"lost":    {lost{gone}, false, gone},
		"unknown": {unknown{gone}, false, gone},
		"ended":   {nil, true, errClosed},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, end := context.WithCancel(t.Context())
			defer end()
			table := &refusing{}
			table.answer = func(_ context.Context, batch []*write) error {
				if table.batches == 1 {
					return errors.New("too large")
				}
				if test.end {
					end()
				}
				return test.second
			}
			batch := writesOf(t.Context(), 8, -1)
			commitOf(newWriter(ctx, table), batch...)
			for i, one := range batch {
				got := <-one.answer
				if i == 0 {
					if !errors.Is(got.err, errors.Unwrap(test.second)) || got.unknown != (name == "unknown") {
						t.Errorf("write %d: %+v, want the answer of its transaction", i, got)
					}
				} else if !errors.Is(got.err, test.want) || got.unknown {
					t.Errorf("write %d: %+v, want that it was not written: %v", i, got, test.want)
				}
			}
			if table.batches != 2 {
				t.Errorf("%d transactions, want 2", table.batches)
			}
		})
	}
}

// A transaction that runs does not hold up the end for as long as it may take otherwise.
func TestATransactionEndsSoonAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		table := &refusing{answer: func(ctx context.Context, _ []*write) error {
			<-ctx.Done()
			return lost{ctx.Err()}
		}}
		w := newWriter(ctx, table)
		began := time.Now()
		time.AfterFunc(time.Second, end)
		commitOf(w, writesOf(t.Context(), 1, -1)...)
		if took := time.Since(began); took != time.Second+endLimit {
			t.Errorf("the transaction went on for %v, want until %v after the end", took, endLimit)
		}
	})
}

func TestAnUnknownOutcomeIsThatOfTheWholeBatch(t *testing.T) {
	s := &scripted{begun: make(chan []string, 10), fail: make(chan error, 10)}
	w := newWriter(t.Context(), s)
	gone := errors.New("gone")
	s.fail <- unknown{gone}
	a, b := &write{ctx: t.Context(), key: "a"}, &write{ctx: t.Context(), key: "b"}
	commitOf(w, a, b) // a second transaction would wait for an answer
	for _, one := range []*write{a, b} {
		if got := <-one.answer; got.err != gone || !got.unknown {
			t.Errorf("%s: %+v, want an unknown outcome", one.key, got)
		}
	}
	s.fail <- lost{gone}
	commitOf(w, a, b)
	for _, one := range []*write{a, b} {
		if got := <-one.answer; !errors.Is(got.err, gone) || got.unknown {
			t.Errorf("%s: %+v, want a failure", one.key, got)
		}
	}
}

// A transaction that was ended for the sake of another one is tried again.
func TestADeadlockIsTriedAgain(t *testing.T) {
	s := &scripted{begun: make(chan []string, 10), fail: make(chan error, 10)}
	w := newWriter(t.Context(), s)
	s.fail <- &pgconn.PgError{Code: "40P01"}
	s.fail <- &mysql.MySQLError{Number: 1213}
	s.fail <- nil
	a := &write{ctx: t.Context(), key: "a"}
	if commitOf(w, a); (<-a.answer).err != nil {
		t.Error("want the write to be done")
	}
}

func TestAWriteWhoseCallerHasLeft(t *testing.T) {
	s, w := startWriter(t)
	ctx, leave := context.WithCancel(t.Context())
	running := s.write(ctx, w, "running")
	s.wait(t)
	leave()
	if got := eventually.Receive(t, "an answer", running); !errors.Is(got.err, context.Canceled) || !got.unknown {
		t.Errorf("%+v, want an unknown outcome", got)
	}
	ctx, leave = context.WithCancel(t.Context())
	queued := s.write(ctx, w, "queued")
	eventually.True(t, "a write waits", func() bool { return len(w.queue) == 1 })
	leave()
	if got := eventually.Receive(t, "an answer", queued); !errors.Is(got.err, context.Canceled) || got.unknown {
		t.Errorf("%+v, want that it was not written", got)
	}
	s.fail <- nil
	if got := w.insert(&write{ctx: ctx, key: "never"}); !errors.Is(got.err, context.Canceled) || got.unknown {
		t.Errorf("%+v, want that it was not written", got)
	}
	gone := &write{ctx: ctx, key: "gone", answer: make(chan written, 1)}
	if w.commit([]*write{gone}); (<-gone.answer).unknown { // would wait for the script
		t.Error("a write whose caller has left before its turn was written")
	}
}

// fencedBy is the context of a write that is taken back when over is true.
func fencedBy(t *testing.T, over *atomic.Bool) context.Context {
	return fence.With(t.Context(), func() (time.Duration, error) {
		if over.Load() {
			return 0, errors.New("over")
		}
		return time.Minute, nil
	})
}

// A write that was taken back while it waited is not written, and the database is not to blame.
func TestAWriteThatWasTakenBack(t *testing.T) {
	s, w := startWriter(t)
	running := s.write(t.Context(), w, "running")
	s.wait(t)
	var over atomic.Bool
	late := s.write(fencedBy(t, &over), w, "late")
	eventually.Nil(t, "the write waits", func() error {
		if len(w.queue) == 0 {
			return errors.New("it does not")
		}
		return nil
	})
	over.Store(true)
	s.fail <- nil
	if got := eventually.Receive(t, "an answer", running); got.err != nil {
		t.Error(got.err)
	}
	if got := eventually.Receive(t, "an answer", late); status.Code(got.err) != codes.Canceled || got.unknown {
		t.Errorf("%+v, want that it was not written", got)
	}
}

// What was in a batch with a write that was taken back is written.
func TestAWriteBesideOneThatWasTakenBack(t *testing.T) {
	s, w := startWriter(t)
	running := s.write(t.Context(), w, "running")
	s.wait(t)
	var over atomic.Bool
	late := s.write(fencedBy(t, &over), w, "late")
	other := s.write(t.Context(), w, "other")
	eventually.True(t, "both wait", func() bool { return len(w.queue) == 2 })
	s.fail <- nil
	eventually.Receive(t, "an answer", running)
	if batch := s.wait(t); len(batch) != 2 {
		t.Fatalf("a transaction of %v, want both", batch)
	}
	over.Store(true)
	s.fail <- errTakenBack
	if got := eventually.Receive(t, "an answer", late); status.Code(got.err) != codes.Canceled || got.unknown {
		t.Errorf("%+v, want that it was not written", got)
	}
	if batch := s.wait(t); !slices.Equal(batch, []string{"other"}) {
		t.Errorf("a transaction of %v, want the other one", batch)
	}
	s.fail <- nil
	if got := eventually.Receive(t, "an answer", other); got.err != nil {
		t.Error(got.err)
	}
}
