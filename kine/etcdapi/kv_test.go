package etcdapi

import (
	"context"
	"fmt"
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

// keys are those of an answer, with "more" if there are, and the count.
func keys(resp *clientv3.GetResponse) string {
	var b strings.Builder
	for _, kv := range resp.Kvs {
		fmt.Fprintf(&b, "%s ", kv.Key)
	}
	if resp.More {
		b.WriteString("more ")
	}
	fmt.Fprintf(&b, "of %d", resp.Count)
	return b.String()
}

func TestRange(t *testing.T) {
	s, ctx := serve(t), t.Context()
	for _, kv := range []string{"a=3", "b=1", "c=2", "d=4", "b=5"} { // revisions 2 to 6
		key, value, _ := strings.Cut(kv, "=")
		s.put(t, key, value)
	}
	prefix := clientv3.WithPrefix()
	for _, test := range []struct {
		name string
		key  string
		opts []clientv3.OpOption
		want string
	}{
		{"one", "b", nil, "b of 1"},
		{"none", "x", nil, "of 0"},
		{"all", "", []clientv3.OpOption{prefix}, "a b c d of 4"},
		{"range", "b", []clientv3.OpOption{clientv3.WithRange("d")}, "b c of 2"},
		{"from", "c", []clientv3.OpOption{clientv3.WithFromKey()}, "c d of 2"},
		{"backwards", "d", []clientv3.OpOption{clientv3.WithRange("b")}, "of 0"},
		{"limit", "", []clientv3.OpOption{prefix, clientv3.WithLimit(2)}, "a b more of 4"},
		{"limit of all", "", []clientv3.OpOption{prefix, clientv3.WithLimit(4)}, "a b c d of 4"},
		{"count", "", []clientv3.OpOption{prefix, clientv3.WithCountOnly()}, "of 4"},
		{"old", "", []clientv3.OpOption{prefix, clientv3.WithRev(3)}, "a b of 2"},
		{"by value", "", []clientv3.OpOption{prefix, clientv3.WithSort(clientv3.SortByValue, clientv3.SortAscend)}, "c a d b of 4"},
		{"by value, keys only", "", []clientv3.OpOption{prefix, clientv3.WithKeysOnly(), clientv3.WithSort(clientv3.SortByValue, clientv3.SortDescend)}, "b d a c of 4"},
		{"by version", "", []clientv3.OpOption{prefix, clientv3.WithSort(clientv3.SortByVersion, clientv3.SortDescend), clientv3.WithLimit(1)}, "b more of 4"},
		{"by key", "", []clientv3.OpOption{prefix, clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend)}, "d c b a of 4"},
		{"by creation", "", []clientv3.OpOption{prefix, clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(2)}, "d c more of 4"},
		{"by change", "", []clientv3.OpOption{prefix, clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortNone), clientv3.WithLimit(2)}, "a c more of 4"},
		{"last", "", clientv3.WithLastRev(), "b more of 4"},
		{"changed since", "", []clientv3.OpOption{prefix, clientv3.WithMinModRev(5)}, "b d of 4"},
		{"changed until", "", []clientv3.OpOption{prefix, clientv3.WithMaxModRev(4), clientv3.WithLimit(1)}, "a more of 4"},
		{"created between", "", []clientv3.OpOption{prefix, clientv3.WithMinCreateRev(3), clientv3.WithMaxCreateRev(4)}, "b c of 4"},
	} {
		got, err := s.Get(ctx, test.key, test.opts...)
		if err != nil || keys(got) != test.want || got.Header.Revision != 6 {
			t.Errorf("%s: %v, %v, want %s at revision 6", test.name, got, err, test.want)
		}
	}
	got, err := s.Get(ctx, "b")
	if err != nil {
		t.Fatal(err)
	}
	if kv := got.Kvs[0]; string(kv.Value) != "5" || kv.CreateRevision != 3 || kv.ModRevision != 6 || kv.Version != 2 {
		t.Errorf("got %v", kv)
	}
	if got, err := s.Get(ctx, "b", clientv3.WithKeysOnly()); err != nil || len(got.Kvs[0].Value) != 0 {
		t.Errorf("keys only: %v, %v, want no value", got, err)
	}

	_, err = s.Get(ctx, "a", clientv3.WithRev(7))
	wantError(t, "the future", err, rpctypes.ErrFutureRev)
	_, err = s.Get(ctx, "")
	wantError(t, "no key", err, rpctypes.ErrEmptyKey)
	_, err = pb.NewKVClient(s.conn(t)).Range(ctx, &pb.RangeRequest{Key: []byte("a"), SortOrder: 9})
	wantError(t, "no order", err, rpctypes.ErrGRPCInvalidSortOption)
}

func TestPutAndDelete(t *testing.T) {
	s, ctx := serve(t), t.Context()
	lease, err := s.Grant(ctx, 600)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := s.Put(ctx, "a", "1", clientv3.WithPrevKV(), clientv3.WithLease(lease.ID)); err != nil || resp.PrevKv != nil || resp.Header.Revision != 2 {
		t.Errorf("create: %v, %v", resp, err)
	}
	if resp, err := s.Put(ctx, "a", "2", clientv3.WithPrevKV(), clientv3.WithIgnoreLease()); err != nil || string(resp.PrevKv.Value) != "1" {
		t.Errorf("update: %v, %v, want what was there", resp, err)
	}
	if got, err := s.Get(ctx, "a"); err != nil || got.Kvs[0].Lease != int64(lease.ID) || string(got.Kvs[0].Value) != "2" {
		t.Errorf("after an update that keeps the lease: %v, %v", got, err)
	}
	if _, err := s.Put(ctx, "a", "", clientv3.WithIgnoreValue()); err != nil {
		t.Errorf("put that keeps the value: %v", err)
	}
	if got, err := s.Get(ctx, "a"); err != nil || got.Kvs[0].Lease != 0 || string(got.Kvs[0].Value) != "2" {
		t.Errorf("after a put that keeps the value: %v, %v", got, err)
	}

	for _, key := range []string{"b", "c", "d"} {
		s.put(t, key, key)
	}
	before := s.engine.Revision()
	gone, err := s.Delete(ctx, "b", clientv3.WithRange("d"), clientv3.WithPrevKV())
	if err != nil || gone.Deleted != 2 || len(gone.PrevKvs) != 2 || string(gone.PrevKvs[1].Value) != "c" || gone.Header.Revision != before+1 {
		t.Errorf("delete a range: %v, %v", gone, err)
	}
	if none, err := s.Delete(ctx, "b"); err != nil || none.Deleted != 0 || none.Header.Revision != before+1 {
		t.Errorf("delete nothing: %v, %v, want the revision to stay", none, err)
	}

	kv := pb.NewKVClient(s.conn(t))
	for name, test := range map[string]struct {
		r    *pb.PutRequest
		want error
	}{
		"no key":               {&pb.PutRequest{}, rpctypes.ErrGRPCEmptyKey},
		"value and none":       {&pb.PutRequest{Key: []byte("a"), Value: []byte("1"), IgnoreValue: true}, rpctypes.ErrGRPCValueProvided},
		"lease and none":       {&pb.PutRequest{Key: []byte("a"), Lease: 1, IgnoreLease: true}, rpctypes.ErrGRPCLeaseProvided},
		"value of no key":      {&pb.PutRequest{Key: []byte("x"), IgnoreValue: true}, rpctypes.ErrGRPCKeyNotFound},
		"lease of no key":      {&pb.PutRequest{Key: []byte("x"), IgnoreLease: true}, rpctypes.ErrGRPCKeyNotFound},
		"lease that is not":    {&pb.PutRequest{Key: []byte("x"), Lease: 1}, rpctypes.ErrGRPCLeaseNotFound},
		"larger than etcd has": {&pb.PutRequest{Key: []byte("x"), Value: make([]byte, maxRequest)}, rpctypes.ErrGRPCRequestTooLarge},
	} {
		_, err := kv.Put(ctx, test.r)
		wantError(t, name, err, test.want)
	}
	_, err = kv.DeleteRange(ctx, &pb.DeleteRangeRequest{})
	wantError(t, "delete no key", err, rpctypes.ErrGRPCEmptyKey)
	if _, err := s.Put(ctx, "x", string(make([]byte, maxRequest-100))); err != nil {
		t.Errorf("as large as etcd has: %v", err)
	}
}

func TestTxn(t *testing.T) {
	s, ctx := serve(t), t.Context()
	s.put(t, "a", "1")
	s.put(t, "b", "2")

	// All compares, ranges, nested transactions, one revision.
	resp, err := s.Txn(ctx).If(
		clientv3.Compare(clientv3.Value("a"), "=", "1"),
		clientv3.Compare(clientv3.Value("a"), "!=", "2"),
		clientv3.Compare(clientv3.Version("a"), "<", 2),
		clientv3.Compare(clientv3.CreateRevision("a"), ">", 1),
		clientv3.Compare(clientv3.ModRevision("b"), "=", 3),
		clientv3.Compare(clientv3.LeaseValue("a"), "=", 0),
		clientv3.Compare(clientv3.ModRevision("missing"), "=", 0),
		clientv3.Compare(clientv3.Version("a"), "=", 1).WithRange("c"),
	).Then(
		clientv3.OpGet("", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend), clientv3.WithLimit(1)),
		clientv3.OpPut("a", "3", clientv3.WithPrevKV()),
		clientv3.OpTxn(
			[]clientv3.Cmp{clientv3.Compare(clientv3.Value("b"), "=", "wrong")},
			nil,
			[]clientv3.Op{clientv3.OpDelete("b", clientv3.WithPrevKV()), clientv3.OpPut("c", "4")},
		),
		clientv3.OpGet("", clientv3.WithPrefix()),
	).Commit()
	if err != nil || !resp.Succeeded || resp.Header.Revision != 4 || len(resp.Responses) != 4 {
		t.Fatalf("txn: %v, %v", resp, err)
	}
	if first := resp.Responses[0].GetResponseRange(); len(first.Kvs) != 1 || string(first.Kvs[0].Key) != "b" || !first.More {
		t.Errorf("the first range: %v, want b and more", first)
	}
	if prev := resp.Responses[1].GetResponsePut().PrevKv; prev == nil || string(prev.Value) != "1" {
		t.Errorf("what was there: %v", prev)
	}
	nested := resp.Responses[2].GetResponseTxn()
	if nested.Succeeded || nested.Responses[0].GetResponseDeleteRange().Deleted != 1 || nested.Responses[1].GetResponsePut().Header.Revision != 4 {
		t.Errorf("the nested one: %v", nested)
	}
	if last := resp.Responses[3].GetResponseRange(); len(last.Kvs) != 2 || string(last.Kvs[1].Key) != "c" || last.Kvs[1].ModRevision != 4 {
		t.Errorf("the last range: %v, want what the transaction made", last)
	}
	refused, err := s.Txn(ctx).If(clientv3.Compare(clientv3.Value("missing"), "!=", "x")).
		Then(clientv3.OpPut("z", "")).Else(clientv3.OpGet("a")).Commit()
	if err != nil || refused.Succeeded || refused.Header.Revision != 4 || string(refused.Responses[0].GetResponseRange().Kvs[0].Value) != "3" {
		t.Errorf("refused: %v, %v", refused, err)
	}
	if empty, err := s.Txn(ctx).Commit(); err != nil || !empty.Succeeded || empty.Header.Revision != 4 {
		t.Errorf("empty: %v, %v", empty, err)
	}

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
		"twice":                  {[]clientv3.Op{put, put}, rpctypes.ErrDuplicateKey},
		"put and delete":         {[]clientv3.Op{put, clientv3.OpDelete("", clientv3.WithPrefix())}, rpctypes.ErrDuplicateKey},
		"twice, nested":          {[]clientv3.Op{put, clientv3.OpTxn(nil, []clientv3.Op{put}, nil)}, rpctypes.ErrDuplicateKey},
		"empty key":              {[]clientv3.Op{clientv3.OpGet("")}, rpctypes.ErrEmptyKey},
		"the future":             {[]clientv3.Op{clientv3.OpPut("n", ""), clientv3.OpGet("a", clientv3.WithRev(99))}, rpctypes.ErrFutureRev},
		"a lease that is not":    {[]clientv3.Op{clientv3.OpPut("n", "", clientv3.WithLease(9))}, rpctypes.ErrLeaseNotFound},
		"the value of no key":    {[]clientv3.Op{clientv3.OpPut("n", "", clientv3.WithIgnoreValue())}, rpctypes.ErrKeyNotFound},
		"larger than etcd's are": {[]clientv3.Op{clientv3.OpPut("n", string(make([]byte, maxRequest)))}, rpctypes.ErrRequestTooLarge},
	} {
		_, err := s.Txn(ctx).Then(test.ops...).Commit()
		wantError(t, name, err, test.want)
	}
	kv := pb.NewKVClient(s.conn(t))
	_, err = kv.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{{}}})
	wantError(t, "no operation", err, rpctypes.ErrGRPCKeyNotFound)
	_, err = kv.Txn(ctx, &pb.TxnRequest{Compare: []*pb.Compare{{}}})
	wantError(t, "compare no key", err, rpctypes.ErrGRPCEmptyKey)
	for name, c := range map[string]*pb.Compare{
		"target": {Key: []byte("a"), Target: 5},
		"result": {Key: []byte("a"), Result: 4},
	} {
		_, err = kv.Txn(ctx, &pb.TxnRequest{Compare: []*pb.Compare{c}, Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{
			RequestPut: &pb.PutRequest{Key: []byte("a")}}}}})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), name) {
			t.Errorf("an unknown %s: %v, want InvalidArgument with its number", name, err)
		}
	}
	if n := s.engine.Revision(); n != 4 {
		t.Errorf("revision %d, want 4: something refused was written", n)
	}
}

func TestCompact(t *testing.T) {
	s, ctx := serve(t), t.Context()
	s.put(t, "a", "1")
	s.put(t, "a", "2")
	s.put(t, "a", "3")
	if _, err := s.Compact(ctx, 3, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	_, err := s.Compact(ctx, 3)
	wantError(t, "again", err, rpctypes.ErrCompacted)
	_, err = s.Compact(ctx, 5)
	wantError(t, "the future", err, rpctypes.ErrFutureRev)
	_, err = s.Get(ctx, "a", clientv3.WithRev(2))
	wantError(t, "read what is compacted", err, rpctypes.ErrCompacted)
	if got, err := s.Get(ctx, "a", clientv3.WithRev(3)); err != nil || string(got.Kvs[0].Value) != "2" {
		t.Errorf("read the compaction revision: %v, %v, want 2", got, err)
	}
}

func TestAnEndedContext(t *testing.T) {
	s := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Get(ctx, "a")
	wantError(t, "get", err, context.Canceled)
}
