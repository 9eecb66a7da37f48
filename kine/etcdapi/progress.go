package etcdapi

import (
	"math"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// progress is a client's question how far all watches of its stream are.
//
// The answer is one revision for all of them, and each takes it for its own: every
// event up to it must have been sent, by every watch, and none after it. (What a
// client believes to have seen, it does not ask for when it connects again. And the
// API server's cache takes the revision of a progress as its own, also one that is
// older than its newest event.) So the question has a target, the newest revision
// at the time, which all watches have to reach. If one of them sends an event or a progress
// of its own beyond it meanwhile, there is a second round: the target is moved to the newest
// revision again, and watches that are there are held until all are.
type progress struct {
	target  int64 // 0: nobody asks
	waiting int   // watches that are behind it
	exact   bool  // the second round: no watch goes beyond target
	held    []*watch
	again   bool // asked once more meanwhile, so perhaps for a newer revision
}

// askProgress is the request. As in etcd, a stream without watches does not answer.
func (st *stream) askProgress() error {
	if st.progress.target != 0 {
		st.progress.again = true
		return nil
	}
	st.aim()
	return st.answerProgress()
}

// askAgain begins anew when there is another watch: the answer is for that, too.
func (st *stream) askAgain() error {
	if st.progress.target == 0 {
		return nil
	}
	st.progress.exact = false
	st.release()
	st.aim()
	return st.answerProgress()
}

// aim sets the target to the newest revision, and asks the watches that are behind
// it to say when they are there.
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

// caughtUp notes that nobody has to wait for a watch any more.
func (st *stream) caughtUp(w *watch) error {
	if !w.behind {
		return nil
	}
	w.behind = false
	st.progress.waiting--
	return st.answerProgress()
}

// answerProgress answers once all watches are at the target.
func (st *stream) answerProgress() error {
	p := &st.progress
	if p.waiting > 0 {
		return nil
	}
	if st.told > p.target {
		p.exact = true
		if st.aim(); p.waiting > 0 {
			return nil
		}
	}
	revision := p.target
	p.target, p.exact = 0, false
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
	if st.progress.exact {
		return st.progress.target
	}
	return math.MaxInt64
}

// hold sets a watch aside that has to wait for others.
func (st *stream) hold(w *watch) bool {
	if w.sent < st.limit() {
		return false
	}
	st.progress.held = append(st.progress.held, w)
	return true
}

// release lets the watches go on that were held.
func (st *stream) release() {
	st.busy = append(st.busy, st.progress.held...)
	st.progress.held = nil
}

// started tells whether no watch begins after revision: etcd tells no progress
// then.
func (st *stream) started(revision int64) bool {
	for _, w := range st.watches {
		if w.least > revision {
			return false
		}
	}
	return len(st.watches) > 0
}

// Notify tells the watches that asked for it (progress_notify) the revision, if
// they do not know it.
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

// OnNotified has f called with +1 for every watch that asks for progress unasked
// (progress_notify) and with -1 at its end. Call it before the server is registered.
func (s *Server) OnNotified(f func(delta int)) { s.notified = f }

// notify is Notify in the stream's own goroutine.
func (st *stream) notify() {
	revision := st.server.engine.Revision()
	for _, w := range st.watches {
		if w.progressNotify && w.told < revision {
			w.due = true
			w.cursor.RequestProgress()
		}
	}
}

// tellProgress tells a watch's client the revision up to which everything has been
// sent, if it is to be told.
func (st *stream) tellProgress(w *watch, revision int64) error {
	due := w.due && w.least <= revision && w.told < revision
	w.due = false
	if !due {
		return nil
	}
	w.told = revision
	st.told = max(st.told, revision)
	return st.grpc.Send(&pb.WatchResponse{Header: header(revision), WatchId: w.id})
}
