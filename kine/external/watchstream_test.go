package external

import (
	"context"
	"errors"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/karve-k8s/karve/kine/inprocess"
)

// late is a cursor that has an event, and then an error.
type late struct {
	inprocess.Cursor
	read bool
}

func (l *late) Next(context.Context) (int64, []*clientv3.Event, error) {
	if l.read {
		return 0, nil, errors.New("lost")
	}
	l.read = true
	return 8, []*clientv3.Event{{}}, nil
}

func (l *late) Close() {}

// sends is a stream that counts what it gets.
type sends struct {
	pb.Watch_WatchServer
	n int
}

func (s *sends) Send(*pb.WatchResponse) error { s.n++; return nil }

// A client ends a watch and gives its id to another before the goroutine of the first knows.
func TestAWatchThatHasEndedSendsNothing(t *testing.T) {
	for name, ended := range map[string]*late{"an event": {}, "an error": {read: true}} {
		to := &sends{}
		st := &watchStream{grpc: to, watches: map[int64]*streamWatch{7: {id: 7, cancel: func() { t.Errorf("%s ends the other watch", name) }}}}
		st.run(t.Context(), &streamWatch{id: 7, cursor: ended, cancel: func() {}})
		if to.n != 0 || st.watches[7] == nil {
			t.Errorf("%s: %d responses, and the other watch is %v", name, to.n, st.watches[7])
		}
	}
}
