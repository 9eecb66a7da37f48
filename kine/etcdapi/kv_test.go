package etcdapi

import (
	"context"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func wantText(t testing.TB, what string, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: %v, want an error with %q", what, err, text)
	}
}

// What TestSameAnswersAsEtcd (test/conformance/etcd) does not send, or what is stricter than etcd.
func TestRefusals(t *testing.T) {
	s, ctx := serve(t), t.Context()
	s.put(t, "a", "1")
	many := make([]clientv3.Op, maxOps+1)
	for i := range many {
		many[i] = clientv3.OpGet("a")
	}
	put := clientv3.OpPut("a", "")
	for name, test := range map[string]struct {
		ops  []clientv3.Op
		want error
	}{
		"too many":               {many, rpctypes.ErrTooManyOps},
		"too many nested":        {[]clientv3.Op{clientv3.OpTxn(nil, many[:maxOps], nil)}, rpctypes.ErrTooManyOps},
		"put and delete":         {[]clientv3.Op{put, clientv3.OpDelete("", clientv3.WithPrefix())}, rpctypes.ErrDuplicateKey},
		"twice, nested":          {[]clientv3.Op{put, clientv3.OpTxn(nil, []clientv3.Op{put}, nil)}, rpctypes.ErrDuplicateKey},
		"larger than etcd's are": {[]clientv3.Op{clientv3.OpPut("n", string(make([]byte, maxRequest)))}, rpctypes.ErrRequestTooLarge},
	} {
		_, err := s.Txn(ctx).Then(test.ops...).Commit()
		wantError(t, name, err, test.want)
	}
	kv := pb.NewKVClient(s.conn(t))
	for name, c := range map[string]*pb.Compare{
		"target": {Key: []byte("a"), Target: 5},
		"result": {Key: []byte("a"), Result: 4},
	} {
		_, err := kv.Txn(ctx, &pb.TxnRequest{Compare: []*pb.Compare{c}, Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{
			RequestPut: &pb.PutRequest{Key: []byte("a")}}}}})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), name) {
			t.Errorf("an unknown %s: %v, want InvalidArgument with its number", name, err)
		}
	}
	_, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("x"), Value: make([]byte, maxRequest)})
	wantError(t, "a put that is larger than etcd's are", err, rpctypes.ErrGRPCRequestTooLarge)
	if n := s.engine.Revision(); n != 2 {
		t.Errorf("revision %d, want 2: something refused was written", n)
	}
	if _, err := s.Put(ctx, "x", string(make([]byte, maxRequest-100))); err != nil {
		t.Errorf("a put as large as etcd's may be: %v", err)
	}
}

func TestAnEndedContext(t *testing.T) {
	s := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Get(ctx, "a")
	wantError(t, "get", err, context.Canceled)
}
