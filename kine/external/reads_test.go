package external

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/k3s-io/kine/pkg/server"

	"github.com/karve-k8s/karve/internal/eventually"
)

// keyTable answers queries for keys when it is told to. It has the keys whose revision is in rows.
type keyTable struct {
	begun  chan []string // the keys of a query
	fail   chan error    // its error, or nil
	newest int64
	rows   map[string]int64
}

func (d *keyTable) read(ctx context.Context, keys []string) (int64, map[string]*server.KeyValue, error) {
	select {
	case d.begun <- slices.Clone(keys):
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	}
	rows := map[string]*server.KeyValue{}
	for _, key := range keys {
		if id, ok := d.rows[key]; ok {
			rows[key] = &server.KeyValue{Key: key, ModRevision: id, Value: []byte(key)}
		}
	}
	return d.newest, rows, <-d.fail
}

func newReader(t *testing.T, d *keyTable) *reader {
	d.begun, d.fail = make(chan []string), make(chan error)
	return &reader{ctx: t.Context(), work: &sync.WaitGroup{}, read: d.read}
}

// ask starts a read, and returns when it has been asked for.
func (r *reader) ask(t *testing.T, ctx context.Context, key string) <-chan found {
	t.Helper()
	answer := make(chan found, 1)
	before := func() int { r.mu.Lock(); defer r.mu.Unlock(); return len(r.waiting) }
	n, busy := before(), r.busy()
	go func() {
		revision, kv, err := r.get(ctx, key)
		answer <- found{revision, kv, err}
	}()
	if busy {
		eventually.True(t, "it waits", func() bool { return before() > n })
	}
	return answer
}

func (r *reader) busy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running == readQueries
}

func (d *keyTable) wait(t *testing.T) []string {
	t.Helper()
	keys := eventually.Receive(t, "a query", d.begun)
	slices.Sort(keys)
	return keys
}

// fill starts as many queries as may run.
func (d *keyTable) fill(t *testing.T, r *reader) (answers []<-chan found) {
	for i := range readQueries {
		answers = append(answers, r.ask(t, t.Context(), fmt.Sprintf("/running/%d", i)))
		d.wait(t)
	}
	return answers
}

func TestReadsThatWaitAreOneQuery(t *testing.T) {
	d := &keyTable{newest: 9, rows: map[string]int64{"/a": 3, "/b": 5}}
	r := newReader(t, d)
	running := d.fill(t, r)
	answers := map[string]<-chan found{}
	for _, key := range []string{"/a", "/b", "/none"} {
		answers[key] = r.ask(t, t.Context(), key)
	}
	same := r.ask(t, t.Context(), "/a")
	for range running {
		d.fail <- nil
	}
	if keys := d.wait(t); !slices.Equal(keys, []string{"/a", "/a", "/b", "/none"}) {
		t.Errorf("a query for %v, want all that wait", keys)
	}
	d.fail <- nil
	for key, answer := range answers {
		f := eventually.Receive(t, key, answer)
		switch want := d.rows[key]; {
		case f.err != nil || f.revision != 9 || (want == 0) != (f.kv == nil):
			t.Errorf("%s: %+v, want revision 9 and the row", key, f)
		case want != 0 && (f.kv.ModRevision != want || string(f.kv.Value) != key):
			t.Errorf("%s: %+v, want that of %d", key, f.kv, want)
		}
	}
	if f := eventually.Receive(t, "/a", same); f.kv == nil || f.kv.ModRevision != 3 {
		t.Errorf("/a, a second time: %+v", f)
	}
	for _, answer := range running {
		if f := eventually.Receive(t, "the first", answer); f.kv != nil || f.err != nil || f.revision != 9 {
			t.Errorf("%+v, want no key", f)
		}
	}
}

func TestAKeyThatIsRefusedFailsAlone(t *testing.T) {
	d := &keyTable{newest: 9, rows: map[string]int64{"/a": 3}}
	r := newReader(t, d)
	running := d.fill(t, r)
	good, bad := r.ask(t, t.Context(), "/a"), r.ask(t, t.Context(), "/bad")
	for range running {
		d.fail <- nil
	}
	d.wait(t)
	refused := &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "22021", Message: "invalid byte sequence"}
	d.fail <- refused
	for range 2 {
		if keys := d.wait(t); slices.Equal(keys, []string{"/bad"}) {
			d.fail <- refused
		} else {
			d.fail <- nil
		}
	}
	if f := eventually.Receive(t, "/a", good); f.err != nil || f.kv == nil {
		t.Errorf("/a: %+v, want its row", f)
	}
	if f := eventually.Receive(t, "/bad", bad); f.err != refused {
		t.Errorf("/bad: %+v, want the database's error", f)
	}
}

func TestAnErrorOfNoKeyIsTheAnswerToAll(t *testing.T) {
	for _, gone := range []error{
		errors.New("unexpected EOF"),
		&pgconn.PgError{SeverityUnlocalized: "FATAL", Message: "terminating connection"},
		&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "57014", Message: "canceling statement due to statement timeout"},
	} {
		d := &keyTable{newest: 9}
		r := newReader(t, d)
		running := d.fill(t, r)
		answers := []<-chan found{r.ask(t, t.Context(), "/a"), r.ask(t, t.Context(), "/b")}
		for range running {
			d.fail <- nil
		}
		d.wait(t)
		d.fail <- gone
		for _, answer := range answers { // a second query would wait for the test
			if f := eventually.Receive(t, "an answer", answer); f.err != gone {
				t.Errorf("%+v, want %v", f, gone)
			}
		}
	}
}

func TestAReaderThatLeaves(t *testing.T) {
	d := &keyTable{newest: 9}
	r := newReader(t, d)
	ctx, leave := context.WithCancel(t.Context())
	answer := r.ask(t, ctx, "/a")
	leave()
	if f := eventually.Receive(t, "an answer", answer); !errors.Is(f.err, context.Canceled) {
		t.Errorf("%+v, want that it was canceled", f)
	}
}

// Close waits for the queries, and none begins after it.
func TestReadsEndWithTheBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &keyTable{newest: 9}
		r := newReader(t, d)
		b := anExternal()
		b.reader, r.work = r, &b.work
		r.ctx, b.cancel = context.WithCancel(t.Context())
		answer := r.ask(t, t.Context(), "/a")
		d.wait(t)
		closed := make(chan struct{})
		go func() { b.Close(); close(closed) }()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("Close has not waited for the query")
		default:
		}
		if _, _, err := r.get(t.Context(), "/late"); err != errClosed {
			t.Errorf("a read after the end: %v, want that it is closed", err)
		}
		d.fail <- nil
		<-closed
		<-answer
	})
}
