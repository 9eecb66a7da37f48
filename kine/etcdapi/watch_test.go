package etcdapi

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// raw is a stream without etcd's client, which hides most of the protocol.
type raw struct {
	t      testing.TB
	stream pb.Watch_WatchClient
}

func (s *served) raw(t testing.TB) raw {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	stream, err := pb.NewWatchClient(s.conn(t)).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return raw{t, stream}
}

func (r raw) next() *pb.WatchResponse {
	r.t.Helper()
	resp, err := r.stream.Recv()
	if err != nil {
		r.t.Fatalf("receive: %v", err)
	}
	return resp
}

func (r raw) send(m *pb.WatchRequest) {
	r.t.Helper()
	if err := r.stream.Send(m); err != nil {
		r.t.Fatalf("send: %v", err)
	}
}

// create asks for a watch and answers what the server says first.
func (r raw) create(c *pb.WatchCreateRequest) *pb.WatchResponse {
	r.t.Helper()
	r.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: c}})
	return r.next()
}

func (r raw) progress() {
	r.t.Helper()
	r.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
}

func (r raw) cancel(id int64) {
	r.t.Helper()
	r.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}})
}

// events are those of a response: the id of its watch, then each event.
func events(resp *pb.WatchResponse) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d:", resp.WatchId)
	for _, e := range resp.Events {
		fmt.Fprintf(&b, " %s %s=%s@%d", e.Type, e.Kv.Key, e.Kv.Value, e.Kv.ModRevision)
		if e.PrevKv != nil {
			fmt.Fprintf(&b, " was %s", e.PrevKv.Value)
		}
	}
	return b.String()
}

func (r raw) want(what string, want string) {
	r.t.Helper()
	if got := events(r.next()); got != want {
		r.t.Errorf("%s: got %s, want %s", what, got, want)
	}
}

func TestWatchCreatesAndCancels(t *testing.T) {
	s := serve(t)
	s.put(t, "a", "0")
	r := s.raw(t)
	for want, c := range []*pb.WatchCreateRequest{
		{Key: []byte("a")},
		{Key: []byte("a"), RangeEnd: []byte("b")},
		{Key: nil, RangeEnd: []byte{0}, WatchId: 7},
		{Key: []byte("a"), RangeEnd: []byte{0}},
	} {
		id := []int64{0, 1, 7, 2}[want]
		if got := r.create(c); !got.Created || got.Canceled || got.WatchId != id || got.Header.Revision != 2 {
			t.Errorf("create %d: %v", id, got)
		}
	}
	for reason, c := range map[string]*pb.WatchCreateRequest{
		"duplicate watch ID":     {Key: []byte("a"), WatchId: 7},
		"watcher range is empty": {Key: []byte("b"), RangeEnd: []byte("a")},
		"compacted":              {Key: []byte("a"), StartRevision: -1},
	} {
		if got := r.create(c); !got.Created || !got.Canceled || got.WatchId != noWatch || !strings.Contains(got.CancelReason, reason) {
			t.Errorf("%s: %v", reason, got)
		}
	}
	r.cancel(1)
	if got := r.next(); !got.Canceled || got.WatchId != 1 || got.CompactRevision != 0 {
		t.Errorf("cancel: %v", got)
	}
	r.cancel(99) // not answered
	s.put(t, "a", "1")
	got := map[string]bool{}
	for range 3 {
		got[events(r.next())] = true
	}
	for _, id := range []int{0, 7, 2} {
		if want := fmt.Sprintf("%d: PUT a=1@3", id); !got[want] {
			t.Errorf("got %v, want %s", got, want)
		}
	}
	r.stream.CloseSend() // a client that asks no more still gets its events
	s.put(t, "x", "1")
	for range 2 {
		r.next()
	}
}

func TestProgressOnRequest(t *testing.T) {
	s := serve(t)
	s.put(t, "a", "1")
	r := s.raw(t)
	r.progress() // of no watch: not answered
	r.create(&pb.WatchCreateRequest{Key: []byte("a")})
	r.create(&pb.WatchCreateRequest{Key: []byte("b"), StartRevision: 2})
	began := time.Now()
	const rounds = 300
	for i := range rounds {
		s.put(t, "elsewhere", fmt.Sprint(i))
		r.progress()
		if got := r.next(); got.WatchId != noWatch || len(got.Events) != 0 || got.Header.Revision != int64(i)+3 {
			t.Fatalf("got %v, want the revision %d", got, i+3)
		}
	}
	if took := time.Since(began); took > 20*time.Second { // kine's tick of 100 ms would take 30 s
		t.Errorf("%d answers took %v: something waits for a tick", rounds, took)
	}
	r.create(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: 1000})
	r.progress()
	r.cancel(2) // the first answer is to this: there is no progress before a watch has begun
	if got := r.next(); !got.Canceled {
		t.Errorf("got %v, want no progress before the start of a watch", got)
	}
	r.progress()
	if got := r.next(); got.WatchId != noWatch || got.Header.Revision != s.engine.Revision() {
		t.Errorf("got %v, want progress again", got)
	}
}

func TestNotifications(t *testing.T) {
	s := serve(t)
	r := s.raw(t)
	r.create(&pb.WatchCreateRequest{Key: []byte("a"), ProgressNotify: true})
	r.create(&pb.WatchCreateRequest{Key: []byte("b")})
	s.put(t, "elsewhere", "1")
	s.server.Notify()
	if got := r.next(); got.WatchId != 0 || len(got.Events) != 0 || got.Header.Revision != 2 {
		t.Errorf("got %v, want the revision for watch 0", got)
	}
	s.put(t, "a", "1")
	r.want("event", "0: PUT a=1@3")
	s.server.Notify() // it knows
	s.put(t, "b", "1")
	r.want("event", "1: PUT b=1@4")
	s.server.Notify()
	if got := r.next(); got.WatchId != 0 || got.Header.Revision != 4 {
		t.Errorf("got %v, want the revision for watch 0", got)
	}
}

func TestFragments(t *testing.T) {
	s := serve(t)
	for i := range 5 {
		s.put(t, fmt.Sprintf("k/%d", i), strings.Repeat("x", 1<<20))
	}
	r := s.raw(t)
	r.create(&pb.WatchCreateRequest{Key: []byte("k/"), RangeEnd: []byte("k0"), StartRevision: 2, Fragment: true})
	var got []string
	for {
		resp := r.next()
		if proto.Size(resp) > maxFragment {
			t.Errorf("a piece of %d bytes, want at most %d", proto.Size(resp), maxFragment)
		}
		for _, e := range resp.Events {
			got = append(got, string(e.Kv.Key))
		}
		if len(got) == 5 {
			if resp.Fragment {
				t.Error("the last piece says that there is more")
			}
			break
		}
	}
	if want := "k/0 k/1 k/2 k/3 k/4"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

// A client that does not read holds up nobody, and gets what it has missed in few
// responses.
func TestASlowStream(t *testing.T) {
	s := serve(t)
	slow, quick := s.raw(t), s.raw(t)
	for _, r := range []raw{slow, quick} {
		r.create(&pb.WatchCreateRequest{Key: []byte("k/"), RangeEnd: []byte("k0")})
	}
	const writes = 500
	value := strings.Repeat("x", 4096)
	for i := range writes {
		s.put(t, fmt.Sprintf("k/%d", i), value)
		if got := quick.next(); len(got.Events) != 1 {
			t.Fatalf("the other stream got %d events at once, want 1", len(got.Events))
		}
	}
	responses := 0
	for n := 0; n < writes; responses++ {
		for _, e := range slow.next().Events {
			if want := int64(n + 2); e.Kv.ModRevision != want {
				t.Fatalf("revision %d, want %d", e.Kv.ModRevision, want)
			}
			n++
		}
	}
	if responses > writes/2 {
		t.Errorf("%d responses for %d events, want fewer", responses, writes)
	}
}
