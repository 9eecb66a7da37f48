package etcdapi

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/version"
	"google.golang.org/grpc"

	"github.com/karve-k8s/karve/datastore"
)

// sink is the client's end of a stream whose steps a test takes itself: what the
// server does happens in the order of the calls, without a connection. It checks
// every message against what the engine's history says.
type sink struct {
	grpc.ServerStream // nil: nothing else is called
	t                 *testing.T
	stream            *stream
	history           []string // key by revision
	watches           map[int64]*watched
	answers           []int64 // revisions of answers about all watches
}

// watched is a watch as its client sees it.
type watched struct {
	prefix string
	next   int64 // first revision that it has not heard about
	last   int64 // newest event
	told   int64 // newest progress
}

func newSink(t *testing.T) *sink {
	engine, err := datastore.OpenEngine(nil, datastore.Options{Durability: datastore.Memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close() })
	s := &sink{t: t, history: make([]string, 2), watches: map[int64]*watched{}}
	s.stream = &stream{server: New(engine, version.Version), grpc: s, watches: map[int64]*watch{}, signal: make(chan struct{}, 1)}
	s.stream.server.hold = func(string, string, int64) time.Duration { return 0 } // a clock would make it another test
	return s
}

func (s *sink) Context() context.Context { return s.t.Context() }

func (s *sink) Recv() (*pb.WatchRequest, error) { panic("the test calls handle") }

func (s *sink) Send(resp *pb.WatchResponse) error {
	w := s.watches[resp.WatchId]
	switch {
	case resp.WatchId == noWatch:
		s.answers = append(s.answers, resp.Header.Revision)
		for id, w := range s.watches {
			s.progress(id, w, resp.Header.Revision)
		}
	case resp.Created:
		if w.next == 0 {
			w.next = resp.Header.Revision + 1 // from where etcd's client would go on
		}
	case resp.Canceled:
		delete(s.watches, resp.WatchId)
	case len(resp.Events) == 0:
		s.progress(resp.WatchId, w, resp.Header.Revision)
	}
	for _, e := range resp.Events {
		if want := s.following(w); e.Kv.ModRevision != want {
			s.t.Fatalf("watch %d of %s: event of revision %d, want that of %d", resp.WatchId, w.prefix, e.Kv.ModRevision, want)
		}
		w.next, w.last = e.Kv.ModRevision+1, e.Kv.ModRevision
	}
	return nil
}

// following is the revision of the next event of a watch.
func (s *sink) following(w *watched) int64 {
	for r := w.next; r < int64(len(s.history)); r++ {
		if s.history[r][:1] == w.prefix {
			return r
		}
	}
	return -1
}

func (s *sink) progress(id int64, w *watched, revision int64) {
	s.t.Helper()
	if next := s.following(w); next > 0 && next <= revision {
		s.t.Fatalf("progress to %d before watch %d of %s has got the event of %d", revision, id, w.prefix, next)
	}
	if revision < w.last || revision < w.told || revision < w.next-1 {
		s.t.Fatalf("progress to %d after watch %d of %s has got the event of %d, and progress to %d; it begins at %d",
			revision, id, w.prefix, w.last, w.told, w.next)
	}
	w.told = revision
}

func (s *sink) put(key string) {
	resp, err := s.stream.server.engine.Put(s.t.Context(), datastore.PutRequest{Key: key})
	if err != nil {
		s.t.Fatal(err)
	}
	if int(resp.Revision) != len(s.history) {
		s.t.Fatalf("revision %d, want %d", resp.Revision, len(s.history))
	}
	s.history = append(s.history, key)
}

func (s *sink) handle(r *pb.WatchRequest) {
	if err := s.stream.handle(r); err != nil {
		s.t.Fatal(err)
	}
}

func (s *sink) create(id int64, prefix string, start int64) {
	s.watches[id] = &watched{prefix: prefix, next: start}
	s.handle(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		Key: []byte(prefix), RangeEnd: []byte{prefix[0] + 1}, WatchId: id, StartRevision: start, ProgressNotify: id%2 == 0,
	}}})
}

func (s *sink) ask() {
	s.handle(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
}

// round is what the stream does between two looks for requests.
func (s *sink) round() {
	s.stream.takeWoken()
	if err := s.stream.round(); err != nil {
		s.t.Fatal(err)
	}
}

// settle lets the stream work until it rests.
func (s *sink) settle() {
	for s.round(); len(s.stream.busy) > 0 || len(s.stream.woken) > 0; {
		s.round()
	}
}

// Any order of requests, writes, notifications and work of the stream: every watch
// gets its events in order, and every progress is true.
func TestStreamsKeepOrder(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		s := newSink(t)
		for i := range 3000 {
			s.put(fmt.Sprint("abc"[i%3:i%3+1], i))
		}
		questions := 0
		for id := int64(1); id < 400; id++ {
			switch random.IntN(8) {
			case 0:
				s.create(id, "abc"[id%3:id%3+1], 0)
			case 1:
				s.create(id, "abc"[id%3:id%3+1], 2+random.Int64N(int64(len(s.history)+3)))
			case 2:
				for other := range s.watches {
					s.handle(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: other}}})
					break
				}
			case 3:
				questions++
				s.ask()
			case 4:
				s.stream.server.streams[s.stream] = true
				s.stream.server.Notify()
			case 5, 6:
				for range random.IntN(3) {
					s.put("abc"[random.IntN(3):][:1])
				}
			}
			if random.IntN(3) > 0 {
				s.round()
			}
		}
		s.settle()
		for id, w := range s.watches {
			if next := s.following(w); next > 0 {
				t.Errorf("seed %d: watch %d has not got the event of %d", seed, id, next)
			}
		}
		if s.stream.progress.target != 0 || len(s.stream.progress.held) > 0 {
			t.Errorf("seed %d: the stream rests while an answer is pending: %+v", seed, s.stream.progress)
		}
		if len(s.answers) > questions {
			t.Errorf("seed %d: %d answers to %d questions", seed, len(s.answers), questions)
		}
	}
}
