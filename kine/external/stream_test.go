package external

import (
	"context"
	"fmt"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/kine/inprocess"
)

// stuck is a stream to a client that does not read.
type stuck struct {
	grpc.ServerStream
	ctx     context.Context
	sending chan<- error
}

func (s stuck) Context() context.Context { return s.ctx }

func (s stuck) Send(*pb.RangeStreamResponse) error {
	s.sending <- nil
	<-s.ctx.Done()
	return s.ctx.Err()
}

// A driver whose reader stops in the middle of a list keeps the connection. There are openConns.
func TestReadersThatStopHoldNoConnection(t *testing.T) {
	rows := make([]row, 1000)
	for i := range rows {
		rows[i] = row{int64(i + 2), fmt.Sprintf("/a/%03d", i), false}
	}
	ctx := t.Context()
	for name, begin := range map[string]func(b *Backend) <-chan error{
		"in this process": func(b *Backend) <-chan error {
			local := inprocess.Register(ctx, bridge{b}, bridge{b}.API("unix"), kine.ProgressInterval)
			t.Cleanup(local.Unregister)
			client, err := inprocess.NewClient(local.URL())
			if err != nil {
				t.Fatal(err)
			}
			begun := make(chan error)
			go func() {
				list, err := client.KV.GetStream(context.Background(), "/a/", clientv3.WithPrefix())
				if err == nil {
					first := <-list
					err = first.Err()
				}
				begun <- err
			}()
			return begun
		},
		"on a socket": func(b *Backend) <-chan error {
			begun := make(chan error)
			go bridge{b}.API("unix").RangeStream(&pb.RangeRequest{Key: []byte("/a/"), RangeEnd: []byte("/a0")}, stuck{ctx: ctx, sending: begun})
			return begun
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := kineOn(t, &table{newest: 2000, rows: rows})
			for i := range openConns + 1 {
				if err := eventually.Receive(t, fmt.Sprintf("list %d", i), begin(b)); err != nil {
					t.Fatalf("list %d: %v", i, err)
				}
			}
		})
	}
}

// received is a stream that counts the keys.
type received struct {
	grpc.ServerStream
	ctx  context.Context
	keys int
}

func (r *received) Context() context.Context { return r.ctx }

func (r *received) Send(m *pb.RangeStreamResponse) error {
	r.keys += len(m.RangeResponse.Kvs)
	return nil
}

// kine's drivers answer some ranges as if there were no keys.
func TestRangesThatKineDoesNotKnow(t *testing.T) {
	for _, test := range []struct {
		key, end string
		revision int64
		want     codes.Code
	}{
		{"\x00", "\x00", 0, codes.OK},
		{"\x00", "\x00", 6, codes.Unimplemented},
		{"/", "\x00", 0, codes.Unimplemented},
		{"/", "\x00", 6, codes.Unimplemented},
		{"/", "0", 6, codes.OK},
	} {
		api := bridge{kineOn(t, &table{newest: 7, rows: []row{{5, "/a", false}}})}.API("unix")
		request := &pb.RangeRequest{Key: []byte(test.key), RangeEnd: []byte(test.end), Revision: test.revision}
		to := received{ctx: t.Context()}
		if err := api.RangeStream(request, &to); status.Code(err) != test.want || err == nil && to.keys != 1 {
			t.Errorf("%q in chunks: %d keys, %v, want %v", request, to.keys, err, test.want)
		}
		if resp, err := api.Range(t.Context(), request); status.Code(err) != test.want || err == nil && len(resp.Kvs) != 1 {
			t.Errorf("%q: %v, %v, want %v", request, resp, err, test.want)
		}
	}
	b := anExternal()
	if _, _, err := b.Count(t.Context(), "/", "\x00", 0); status.Code(err) != codes.Unimplemented {
		t.Errorf("a count without an end: %v, want Unimplemented", err)
	}
}
