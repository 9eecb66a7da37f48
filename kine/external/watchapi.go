package external

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/kine/inprocess"
	"github.com/karve-k8s/karve/kine/pace"
)

// Watch serves a stream of watches. kine's bridge has one, which ends the process when a progress
// report to all watches overtakes the history of a watch that has been created meanwhile (kine
// pkg/server/watch.go, Send). Here each watch reports its own progress, after its events.
func (a api) Watch(grpc pb.Watch_WatchServer) error {
	ctx, cancel := context.WithCancel(grpc.Context())
	st := &watchStream{backend: a.backend, paced: a.paced, grpc: grpc, watches: map[int64]*streamWatch{}}
	defer st.work.Wait()
	defer cancel()
	st.work.Go(func() { st.notify(ctx) })
	for {
		r, err := grpc.Recv()
		if errors.Is(err, io.EOF) { // the client may still want its events
			<-ctx.Done()
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		switch r := r.RequestUnion.(type) {
		case *pb.WatchRequest_CreateRequest:
			err = st.create(ctx, r.CreateRequest)
		case *pb.WatchRequest_CancelRequest:
			if w := st.watch(r.CancelRequest.GetWatchId()); w != nil {
				err = st.end(w, &pb.WatchResponse{})
			}
		case *pb.WatchRequest_ProgressRequest:
			st.each((*streamWatch).requestProgress)
		}
		if err != nil {
			return err
		}
	}
}

// watchStream is the watches of one stream. Each has a goroutine that reads its cursor.
type watchStream struct {
	backend server.Backend
	paced   *pace.Watches
	grpc    pb.Watch_WatchServer
	work    sync.WaitGroup

	mu      sync.Mutex // for sending, too
	watches map[int64]*streamWatch
	nextID  int64
}

type streamWatch struct {
	id     int64
	cursor inprocess.Cursor
	cancel context.CancelFunc
	least  int64 // the first revision that a progress may have
	told   atomic.Int64

	noPut, noDelete, prevKV, progressNotify bool
}

func (w *streamWatch) requestProgress() { w.cursor.RequestProgress() }

// errEnded is the end of a watch that its client has ended.
var errEnded = errors.New("the watch has ended")

// sendOf sends a response of a watch that has not ended. The id of one that has may already be that of another.
func (st *watchStream) sendOf(w *streamWatch, m *pb.WatchResponse) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.watches[w.id] != w {
		return errEnded
	}
	return st.grpc.Send(m)
}

// send sends a response with the newest revision that the backend knows of, unless it has one.
func (st *watchStream) send(m *pb.WatchResponse) error {
	if m.Header == nil {
		revision, err := st.backend.CurrentRevision(st.grpc.Context())
		if err != nil {
			return err
		}
		m.Header = &pb.ResponseHeader{Revision: revision}
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.grpc.Send(m)
}

func (st *watchStream) each(do func(*streamWatch)) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, w := range st.watches {
		do(w)
	}
}

// The answers to requests that are wrong in any state are those of etcdapi.
func (st *watchStream) create(ctx context.Context, r *pb.WatchCreateRequest) error {
	key, end := string(r.GetKey()), string(r.GetRangeEnd())
	if key == "" {
		key = "\x00"
	}
	w := &streamWatch{id: r.GetWatchId(), prevKV: r.GetPrevKv(), progressNotify: r.GetProgressNotify()}
	for _, f := range r.GetFilters() {
		w.noPut = w.noPut || f == pb.WatchCreateRequest_NOPUT
		w.noDelete = w.noDelete || f == pb.WatchCreateRequest_NODELETE
	}
	refuse := func(id int64, reason string) error {
		return st.send(&pb.WatchResponse{WatchId: id, Created: true, Canceled: true, CancelReason: reason})
	}
	switch {
	case r.GetStartRevision() < 0:
		return refuse(clientv3.InvalidWatchID, rpctypes.ErrCompacted.Error())
	case end != "" && end != "\x00" && key >= end:
		return refuse(clientv3.InvalidWatchID, "mvcc: watcher range is empty")
	case w.id != 0 && st.watch(w.id) != nil:
		return refuse(clientv3.InvalidWatchID, "mvcc: duplicate watch ID provided on the WatchStream")
	}
	if w.id == 0 {
		w.id = st.newID()
	}
	ctx, w.cancel = context.WithCancel(ctx)
	cursor, opened, err := bridge{st.backend}.Watch(ctx, key, end, r.GetStartRevision(), w.prevKV, nil)
	if gone := (inprocess.CompactedError{}); errors.As(err, &gone) {
		w.cancel()
		if err := st.send(&pb.WatchResponse{WatchId: w.id, Created: true}); err != nil {
			return err
		}
		return st.send(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: gone.Current}, WatchId: w.id, Canceled: true, CompactRevision: gone.Compacted})
	}
	if err != nil {
		w.cancel()
		return refuse(w.id, status.Convert(err).Message())
	}
	w.cursor, w.least = cursor, opened
	if r.GetStartRevision() > 0 {
		w.least = r.GetStartRevision()
	}
	if err := st.send(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: opened}, WatchId: w.id, Created: true}); err != nil {
		w.cancel()
		cursor.Close()
		return err
	}
	st.mu.Lock()
	st.watches[w.id] = w
	st.mu.Unlock()
	var hold time.Duration
	if r.GetStartRevision() > 0 {
		hold = st.paced.Hold(key, end, r.GetStartRevision())
	}
	st.work.Go(func() {
		select {
		case <-time.After(hold):
		case <-ctx.Done():
		}
		st.run(ctx, w)
	})
	return nil
}

func (st *watchStream) newID() int64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	for st.watches[st.nextID] != nil {
		st.nextID++
	}
	st.nextID++
	return st.nextID - 1
}

// run sends what the cursor of a watch reads. An error of sending is one of receiving, too.
func (st *watchStream) run(ctx context.Context, w *streamWatch) {
	defer w.cursor.Close()
	for {
		revision, events, err := w.cursor.Next(ctx)
		if err != nil {
			if ctx.Err() == nil {
				st.end(w, &pb.WatchResponse{CancelReason: status.Convert(err).Message()})
			}
			return
		}
		m := &pb.WatchResponse{Header: &pb.ResponseHeader{Revision: revision}, WatchId: w.id}
		for _, e := range events {
			if isDelete := e.Type == clientv3.EventTypeDelete; isDelete && w.noDelete || !isDelete && w.noPut {
				continue
			}
			if !w.prevKV {
				e.PrevKv = nil
			}
			m.Events = append(m.Events, (*mvccpb.Event)(e))
		}
		if len(m.Events) == 0 && (len(events) > 0 || revision < w.least) {
			continue
		}
		if w.told.Store(revision); st.sendOf(w, m) != nil {
			return
		}
	}
}

// end ends a watch, and tells the client. It does nothing if the watch has ended.
func (st *watchStream) end(w *streamWatch, m *pb.WatchResponse) error {
	st.mu.Lock()
	ended := st.watches[w.id] != w
	if !ended {
		delete(st.watches, w.id)
	}
	st.mu.Unlock()
	if ended {
		return nil
	}
	w.cancel()
	m.WatchId, m.Canceled = w.id, true
	return st.send(m)
}

// watch returns the watch that has an id, or nil.
func (st *watchStream) watch(id int64) *streamWatch {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.watches[id]
}

// notify requests the progress of watches whose clients want to know it without asking.
func (st *watchStream) notify(ctx context.Context) {
	tick := time.NewTicker(kine.ProgressInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		revision, err := st.backend.CurrentRevision(ctx)
		if err != nil {
			continue
		}
		st.each(func(w *streamWatch) {
			if w.progressNotify && w.told.Load() < revision {
				w.requestProgress()
			}
		})
	}
}
