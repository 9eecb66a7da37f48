package etcdapi

import pb "go.etcd.io/etcd/api/v3/etcdserverpb"

// progress is a client's question how far all watches of its stream are. Each is
// asked to say when it has sent what happened up to now; the answer is the
// revision that all of them have reached, at once, and never before their
// events.
type progress struct {
	waiting int   // watches that have not said so
	least   int64 // revision of those that have
	again   bool  // asked once more meanwhile, so perhaps for a newer revision
}

// askProgress is the request. As in etcd, a stream without watches does not answer.
func (st *stream) askProgress() error {
	if st.progress.waiting > 0 {
		st.progress.again = true
		return nil
	}
	st.progress = progress{waiting: len(st.watches)}
	for _, w := range st.watches {
		w.asked = true
		w.cursor.RequestProgress()
	}
	return nil
}

// reached notes that a watch has sent everything up to revision.
func (st *stream) reached(w *watch, revision int64) error {
	if !w.asked {
		return nil
	}
	w.asked = false
	p := &st.progress
	if p.least == 0 || revision < p.least {
		p.least = revision
	}
	if p.waiting--; p.waiting > 0 {
		return nil
	}
	if st.started(p.least) {
		if err := st.grpc.Send(&pb.WatchResponse{Header: header(p.least), WatchId: noWatch}); err != nil {
			return err
		}
	}
	if p.again {
		p.again = false
		return st.askProgress()
	}
	return nil
}

// started tells whether no watch begins after revision: etcd tells no progress
// then.
func (st *stream) started(revision int64) bool {
	for _, w := range st.watches {
		if w.start > revision {
			return false
		}
	}
	return len(st.watches) > 0
}

// Notify tells the watches that asked for it (progress_notify) the revision, if
// they have nothing heard since the last call.
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

// notify is Notify in the stream's own goroutine.
func (st *stream) notify() {
	for _, w := range st.watches {
		if w.progressNotify && w.silent {
			w.due = true
			w.cursor.RequestProgress()
		}
		w.silent = true
	}
}

// tellProgress answers for a watch that has sent everything up to revision.
func (st *stream) tellProgress(w *watch, revision int64) error {
	if w.due && w.start <= revision {
		if err := st.grpc.Send(&pb.WatchResponse{Header: header(revision), WatchId: w.id}); err != nil {
			return err
		}
	}
	w.due = false
	return st.reached(w, revision)
}
