package etcdapi

import (
	"math"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// progress is a client's request for the progress of all watches of its stream.
//
// The answer is one revision for all watches, and each takes it for its own: it must have sent
// every event up to that revision, and none after it. A client that connects again does not
// ask for events that it believes to have, and the API server's watch cache takes over the
// revision even if it is older than its newest event.
//
// So the request has a target, the newest revision at that time. Watches that have reached it are held until all have.
type progress struct {
	target  int64 // 0: no request
	waiting int   // watches that have not reached it
	held    []*watch
	again   bool // a second request has come meanwhile, perhaps for a newer revision
}

// askProgress begins a request. As in etcd, a stream without watches does not answer.
func (st *stream) askProgress() error {
	if st.progress.target != 0 {
		st.progress.again = true
		return nil
	}
	st.aim()
	return st.answerProgress()
}

// askAgain begins anew when a watch has been created, because the answer is for that watch
// too.
func (st *stream) askAgain() error {
	if st.progress.target == 0 {
		return nil
	}
	st.release()
	st.aim()
	return st.answerProgress()
}

// aim sets the target to the newest revision, which no watch is beyond, and requests progress of the watches behind it.
func (st *stream) aim() {
	p := &st.progress
	p.target, p.waiting = st.server.engine.Revision(), 0
	for _, w := range st.watches {
		if w.behind = w.sent < p.target; w.behind {
			p.waiting++
			w.cursor.RequestProgress()
		}
	}
}

// reached notes that a watch has sent everything up to revision.
func (st *stream) reached(w *watch, revision int64) error {
	w.sent = max(w.sent, revision)
	if w.sent < st.progress.target {
		return nil
	}
	return st.caughtUp(w)
}

// caughtUp notes that the request no longer waits for a watch.
func (st *stream) caughtUp(w *watch) error {
	if !w.behind {
		return nil
	}
	w.behind = false
	st.progress.waiting--
	return st.answerProgress()
}

// answerProgress answers once all watches have reached the target.
func (st *stream) answerProgress() error {
	p := &st.progress
	if p.waiting > 0 {
		return nil
	}
	revision := p.target
	p.target = 0
	st.release()
	if st.started(revision) {
		for _, w := range st.watches {
			w.told = revision
		}
		if err := st.grpc.Send(&pb.WatchResponse{Header: header(revision), WatchId: noWatch}); err != nil {
			return err
		}
	}
	if p.again {
		p.again = false
		return st.askProgress()
	}
	return nil
}

// limit is the revision beyond which no watch may send events now.
func (st *stream) limit() int64 {
	if st.progress.target != 0 {
		return st.progress.target
	}
	return math.MaxInt64
}

// hold sets a watch aside until all watches have reached the target.
func (st *stream) hold(w *watch) bool {
	if w.sent < st.limit() {
		return false
	}
	st.progress.held = append(st.progress.held, w)
	return true
}

// release continues the watches that were held.
func (st *stream) release() {
	st.busy = append(st.busy, st.progress.held...)
	st.progress.held = nil
}

// started tells whether all watches begin at revision or before: otherwise etcd reports no
// progress.
func (st *stream) started(revision int64) bool {
	for _, w := range st.watches {
		if w.least > revision {
			return false
		}
	}
	return len(st.watches) > 0
}

// Notify sends the revision to the watches with progress_notify that do not know it.
func (s *Server) Notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		st.mu.Lock()
		st.tell = true
		st.mu.Unlock()
		st.notice()
	}
}

// notify does Notify in the stream's own goroutine.
func (st *stream) notify() {
	revision := st.server.engine.Revision()
	for _, w := range st.watches {
		if w.progressNotify && w.told < revision {
			w.due = true
			w.cursor.RequestProgress()
		}
	}
}

// tellProgress sends the revision up to which a watch has sent everything, if its client wants
// it.
func (st *stream) tellProgress(w *watch, revision int64) error {
	due := w.due && w.least <= revision && w.told < revision
	w.due = false
	if !due {
		return nil
	}
	w.told = revision
	return st.grpc.Send(&pb.WatchResponse{Header: header(revision), WatchId: w.id})
}
