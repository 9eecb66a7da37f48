package etcdapi

import (
	"errors"
	"io"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"

	"github.com/karve-k8s/karve/datastore"
)

// noWatch is the id in answers that are about no watch or about all of a stream
// (clientv3.InvalidWatchID).
const noWatch = -1

// stream is a client's stream of watches. Its own goroutine does everything except receiving:
// it creates watches, polls those that the engine has woken, and sends. A watch therefore
// needs no goroutine, channel or buffer, and a client that does not read delays only itself:
// its cursors stay where they are.
type stream struct {
	server   *Server
	grpc     pb.Watch_WatchServer
	requests chan *pb.WatchRequest // from receive
	watches  map[int64]*watch
	nextID   int64
	busy     []*watch // to be polled
	spare    []*watch // the slice of the last round, for reuse
	progress progress
	signal   chan struct{} // of capacity 1: woken or tell has changed

	mu    sync.Mutex // the engine calls wake while it holds a lock of its own
	woken []*watch
	tell  bool // the watches with progressNotify are due
}

// watch is one watch of a stream. It is in exactly one place: at rest in the engine, in
// stream.woken, in stream.busy or in progress.held.
type watch struct {
	id     int64
	cursor *datastore.Watcher
	least  int64 // the first revision that a progress may have
	sent   int64 // all events up to it have been sent
	told   int64 // the newest revision that the client knows by this watch
	ended  bool

	noPut, noDelete, fragment bool

	progressNotify bool
	due            bool // a notification is due
	behind         bool // has not reached progress.target
}

// Watch serves a stream until its client or the server ends it.
func (s *Server) Watch(server pb.Watch_WatchServer) error {
	st := &stream{
		server: s, grpc: server,
		requests: make(chan *pb.WatchRequest),
		watches:  map[int64]*watch{},
		signal:   make(chan struct{}, 1),
	}
	s.mu.Lock()
	s.streams[st] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.streams, st)
		s.mu.Unlock()
		for _, w := range st.watches {
			st.forget(w)
		}
	}()
	failed := make(chan error, 1)
	go st.receive(failed) // ends with the stream's context
	err := st.run(failed)
	if server.Context().Err() != nil {
		return rpctypes.ErrGRPCWatchCanceled
	}
	return err
}

var _ pb.WatchServer = (*Server)(nil)

// receive passes on requests. A client that sends no more of them may still want its events.
func (st *stream) receive(failed chan<- error) {
	for {
		r, err := st.grpc.Recv()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			failed <- err
			return
		}
		select {
		case st.requests <- r:
		case <-st.grpc.Context().Done():
			return
		}
	}
}

// run waits for requests and wakes. Watches with more to send take turns, one response each;
// requests come between the rounds.
func (st *stream) run(failed <-chan error) error {
	for {
		st.takeWoken()
		if len(st.busy) == 0 {
			select {
			case <-st.signal:
				continue
			case r := <-st.requests:
				if err := st.handle(r); err != nil {
					return err
				}
				continue
			case err := <-failed:
				return err
			case <-st.grpc.Context().Done():
				return nil
			}
		}
		select {
		case r := <-st.requests:
			if err := st.handle(r); err != nil {
				return err
			}
		case err := <-failed:
			return err
		default:
		}
		if err := st.round(); err != nil {
			return err
		}
	}
}

// round polls every busy watch once.
func (st *stream) round() error {
	all := st.busy
	st.busy = st.spare
	for _, w := range all {
		again, err := st.poll(w)
		if err != nil {
			return err
		}
		if again {
			st.busy = append(st.busy, w)
		}
	}
	clear(all)
	st.spare = all[:0]
	return nil
}

// wake is called by the engine.
func (st *stream) wake(w *watch) {
	st.mu.Lock()
	st.woken = append(st.woken, w)
	st.mu.Unlock()
	st.notice()
}

func (st *stream) notice() {
	select {
	case st.signal <- struct{}{}:
	default:
	}
}

// takeWoken moves the watches that have been woken to those that are polled.
func (st *stream) takeWoken() {
	st.mu.Lock()
	tell := st.tell
	st.tell = false
	st.mu.Unlock()
	if tell {
		st.notify()
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.busy = append(st.busy, st.woken...)
	clear(st.woken)
	st.woken = st.woken[:0]
}

// handle answers a request. As in etcd, a request without a meaning gets no answer.
func (st *stream) handle(r *pb.WatchRequest) error {
	switch r := r.RequestUnion.(type) {
	case *pb.WatchRequest_CreateRequest:
		if r.CreateRequest != nil {
			return st.create(r.CreateRequest)
		}
	case *pb.WatchRequest_CancelRequest:
		if w := st.watches[r.CancelRequest.GetWatchId()]; w != nil && r.CancelRequest != nil {
			if err := st.grpc.Send(&pb.WatchResponse{Header: st.server.newest(), WatchId: w.id, Canceled: true}); err != nil {
				return err
			}
			return st.end(w)
		}
	case *pb.WatchRequest_ProgressRequest:
		return st.askProgress()
	}
	return nil
}

// Errors of watch requests, with etcd's texts (server/storage/mvcc/watcher.go).
var (
	errEmptyRange  = errors.New("mvcc: watcher range is empty")
	errDuplicateID = errors.New("mvcc: duplicate watch ID provided on the WatchStream")
)

func (st *stream) create(r *pb.WatchCreateRequest) error {
	key, end := bounds(r.Key, r.RangeEnd)
	if key == "" {
		key = "\x00" // the smallest key
	}
	switch {
	case r.StartRevision < 0:
		return st.refuse(rpctypes.ErrCompacted)
	case end != "" && end != "\x00" && key >= end:
		return st.refuse(errEmptyRange)
	case r.WatchId != 0 && st.watches[r.WatchId] != nil:
		return st.refuse(errDuplicateID)
	}
	w := &watch{id: r.WatchId, fragment: r.Fragment, progressNotify: r.ProgressNotify}
	for _, f := range r.Filters {
		w.noPut = w.noPut || f == pb.WatchCreateRequest_NOPUT
		w.noDelete = w.noDelete || f == pb.WatchCreateRequest_NODELETE
	}
	if w.id == 0 {
		for st.watches[st.nextID] != nil {
			st.nextID++
		}
		w.id = st.nextID
		st.nextID++
	}
	cursor, err := st.server.engine.Watch(datastore.WatchRequest{
		Key: key, End: end, StartRevision: r.StartRevision, PrevKV: r.PrevKv, Wake: func() { st.wake(w) },
	})
	gone := errors.Is(err, datastore.ErrCompacted)
	if err != nil && !gone {
		return Status(err)
	}
	created := &pb.WatchResponse{Header: st.server.newest(), WatchId: w.id, Created: true}
	if gone {
		if err := st.grpc.Send(created); err != nil {
			return err
		}
		return st.sendCompacted(w)
	}
	// A client whose watch has no start revision begins here when it connects again.
	// The newest revision would be wrong: the watch may not have sent all events up to it.
	created.Header = header(cursor.Opened())
	w.cursor, w.least, w.sent = cursor, r.StartRevision, r.StartRevision-1
	if r.StartRevision == 0 {
		w.least, w.sent = cursor.Opened(), cursor.Opened()
	}
	w.told = w.sent
	st.watches[w.id] = w
	if err := st.grpc.Send(created); err != nil {
		return err
	}
	var hold time.Duration
	if r.StartRevision > 0 && r.StartRevision <= cursor.Opened() {
		hold = st.server.hold(key, end, r.StartRevision)
	}
	if hold == 0 {
		st.busy = append(st.busy, w) // to be polled for the first time
	} else {
		time.AfterFunc(hold, func() { st.wake(w) })
	}
	return st.askAgain()
}

// forget removes w from the stream's watches.
func (st *stream) forget(w *watch) {
	delete(st.watches, w.id)
	w.ended = true
	w.cursor.Close()
}

func (st *stream) refuse(reason error) error {
	return st.grpc.Send(&pb.WatchResponse{
		Header: st.server.newest(), WatchId: noWatch, Created: true, Canceled: true, CancelReason: reason.Error(),
	})
}

func (st *stream) sendCompacted(w *watch) error {
	return st.grpc.Send(&pb.WatchResponse{
		Header: st.server.newest(), WatchId: w.id, Canceled: true, CompactRevision: st.server.engine.CompactRevision(),
	})
}

// end forgets a watch whose client knows of its end. A request for progress no longer waits
// for it.
func (st *stream) end(w *watch) error {
	st.forget(w)
	return st.caughtUp(w)
}

// poll sends the next response of a watch, and returns whether there is more.
func (st *stream) poll(w *watch) (more bool, err error) {
	if w.ended || st.hold(w) {
		return false, nil
	}
	resp, more, err := w.cursor.PollTo(st.limit())
	switch {
	case errors.Is(err, datastore.ErrCompacted):
		if err := st.sendCompacted(w); err != nil {
			return false, err
		}
		return false, st.end(w)
	case err != nil:
		return false, Status(err)
	case resp == nil:
		return more, nil
	case len(resp.Events) == 0:
		err = st.tellProgress(w, resp.Revision)
	default:
		err = st.send(w, resp)
	}
	if err != nil {
		return false, err
	}
	return more, st.reached(w, resp.Revision)
}

// send sends events.
func (st *stream) send(w *watch, resp *datastore.WatchResponse) error {
	events := make([]*mvccpb.Event, 0, len(resp.Events))
	size := 0
	for i := range resp.Events {
		e := &resp.Events[i]
		if isDelete := e.Type == datastore.EventDelete; isDelete && w.noDelete || !isDelete && w.noPut {
			continue
		}
		events = append(events, Event(e))
		size += proto.Size(events[len(events)-1])
	}
	if len(events) == 0 {
		return nil
	}
	w.told = resp.Events[len(resp.Events)-1].KV.ModRevision
	for w.fragment && size >= maxFragment && len(events) > 1 {
		n, part := 1, proto.Size(events[0])
		for n < len(events) && part+proto.Size(events[n]) < maxFragment {
			part += proto.Size(events[n])
			n++
		}
		if n == len(events) {
			break
		}
		if err := st.sendEvents(w, resp.Revision, events[:n], true); err != nil {
			return err
		}
		events, size = events[n:], size-part
	}
	return st.sendEvents(w, resp.Revision, events, false)
}

// maxFragment is the largest response to a client that accepts fragments. gRPC's client
// accepts twice as much by default.
const maxFragment = maxRequest + 512*1024

func (st *stream) sendEvents(w *watch, revision int64, events []*mvccpb.Event, fragment bool) error {
	return st.grpc.Send(&pb.WatchResponse{Header: header(revision), WatchId: w.id, Events: events, Fragment: fragment})
}
