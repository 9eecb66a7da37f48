package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// TestSameAnswersAsEtcd sends the same random requests to Karve's etcd API and to etcd. Every
// answer, error and event has to be the same, revisions included.
func TestSameAnswersAsEtcd(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an etcd for each seed")
	}
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			ours, theirs := connect(t, serveKarve(ctx, t)), connect(t, serveEtcd(ctx, t))
			r := requests{rand.New(rand.NewPCG(seed, 0)), 1}
			for i := range 3000 {
				req := r.next()
				got, want := ours.do(ctx, req), theirs.do(ctx, req)
				if got.text != want.text {
					t.Fatalf("request %d: %T %v\n got %s\nwant %s", i, req, req, got.text, want.text)
				}
				r.revision = max(r.revision, got.revision)
			}
			last := &pb.PutRequest{Key: []byte("k1"), Value: []byte("the end")}
			end := ours.do(ctx, last).revision
			theirs.do(ctx, last)
			for i := range 60 {
				req := r.watch(end)
				got, want := ours.watch(ctx, t, req, end), theirs.watch(ctx, t, req, end)
				if got != want {
					t.Fatalf("watch %d: %v\n got %s\nwant %s", i, req, got, want)
				}
			}
		})
	}
}

// requests makes random requests. They use a few keys, so that they affect each other.
type requests struct {
	*rand.Rand
	revision int64 // the newest revision
}

func (r requests) yes(of int) bool { return r.IntN(of) == 0 }

func (r requests) key() []byte {
	if r.yes(100) {
		return nil
	}
	return fmt.Appendf(nil, "k%d", r.IntN(9))
}

// end is the end of a range, which is mostly one key.
func (r requests) end() []byte {
	switch r.IntN(8) {
	case 0:
		return []byte{0}
	case 1, 2:
		return r.key()
	case 3:
		return []byte("l")
	}
	return nil
}

// at is a revision, mostly 0: the newest one.
func (r requests) at() int64 {
	if r.yes(3) {
		return 1 + r.Int64N(r.revision+2)
	}
	return 0
}

func (r requests) lease() int64 {
	if r.yes(4) {
		return 1 + r.Int64N(5)
	}
	return 0
}

func (r requests) rangeRequest() *pb.RangeRequest {
	req := &pb.RangeRequest{
		Key: r.key(), RangeEnd: r.end(), Revision: r.at(), KeysOnly: r.yes(4), CountOnly: r.yes(8), Serializable: r.yes(2),
	}
	if r.yes(2) {
		req.Limit = r.Int64N(6)
	}
	if r.yes(3) {
		req.SortOrder = pb.RangeRequest_SortOrder(r.IntN(4)) // 3 is not a valid order
		req.SortTarget = pb.RangeRequest_SortTarget(r.IntN(5))
	}
	if r.yes(4) {
		req.MinModRevision, req.MaxCreateRevision = r.at(), r.at()
	}
	if r.yes(4) {
		req.MaxModRevision, req.MinCreateRevision = r.at(), r.at()
	}
	return req
}

func (r requests) put() *pb.PutRequest {
	req := &pb.PutRequest{Key: r.key(), Lease: r.lease(), PrevKv: r.yes(3), IgnoreValue: r.yes(12), IgnoreLease: r.yes(12)}
	if req.IgnoreValue {
		req.Lease = 0 // if neither key nor lease exists, the error of etcd varies
	}
	if !r.yes(8) {
		req.Value = fmt.Appendf(nil, "%d", r.IntN(5))
	}
	return req
}

func (r requests) delete() *pb.DeleteRangeRequest {
	return &pb.DeleteRangeRequest{Key: r.key(), RangeEnd: r.end(), PrevKv: r.yes(3)}
}

func (r requests) txn(depth int) *pb.TxnRequest {
	req := &pb.TxnRequest{}
	for range r.IntN(3) {
		req.Compare = append(req.Compare, r.compare())
	}
	req.Success, req.Failure = r.branch(depth), r.branch(depth)
	return req
}

// branch has at most one nested transaction: etcd does not notice when a nested transaction puts a
// key that a later one deletes, and the engine does.
func (r requests) branch(depth int) (ops []*pb.RequestOp) {
	for range r.IntN(4) {
		op := r.op(depth)
		if op.GetRequestTxn() != nil {
			depth = 0
		}
		ops = append(ops, op)
	}
	return ops
}

func (r requests) compare() *pb.Compare {
	c := &pb.Compare{Key: r.key(), RangeEnd: r.end(), Result: pb.Compare_CompareResult(r.IntN(4)), Target: pb.Compare_CompareTarget(r.IntN(5))}
	switch c.Target {
	case pb.Compare_VERSION:
		c.TargetUnion = &pb.Compare_Version{Version: r.Int64N(3)}
	case pb.Compare_CREATE:
		c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: r.at()}
	case pb.Compare_MOD:
		c.TargetUnion = &pb.Compare_ModRevision{ModRevision: r.at()}
	case pb.Compare_VALUE:
		c.TargetUnion = &pb.Compare_Value{Value: fmt.Appendf(nil, "%d", r.IntN(5))}
	case pb.Compare_LEASE:
		c.TargetUnion = &pb.Compare_Lease{Lease: r.lease()}
	}
	if r.yes(20) {
		c.TargetUnion = nil
	}
	return c
}

func (r requests) op(depth int) *pb.RequestOp {
	switch n := r.IntN(10); {
	case n < 4:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: r.put()}}
	case n < 7:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r.rangeRequest()}}
	case n < 8 && depth > 0:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: r.txn(depth - 1)}}
	}
	req := r.delete()
	if string(req.RangeEnd) == "\x00" {
		// etcd does not notice when such a range contains a key that the transaction puts too
		// (server/etcdserver/api/v3rpc/key.go, checkIntervals); the engine does.
		req.RangeEnd = []byte("l")
	}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: req}}
}

func (r requests) next() any {
	switch n := r.IntN(100); {
	case n < 30:
		return r.put()
	case n < 48:
		return r.rangeRequest()
	case n < 55:
		req := streamed{r.rangeRequest()}
		if req.SortOrder == pb.RangeRequest_NONE {
			req.SortTarget = pb.RangeRequest_KEY // see TestSameChunksAsEtcd
		}
		return req
	case n < 65:
		return r.delete()
	case n < 90:
		return r.txn(2)
	case n < 93:
		return &pb.LeaseGrantRequest{ID: 1 + r.Int64N(5), TTL: 1000}
	case n < 95:
		return &pb.LeaseRevokeRequest{ID: 1 + r.Int64N(5)}
	case n < 98:
		return &pb.LeaseTimeToLiveRequest{ID: 1 + r.Int64N(5), Keys: true}
	}
	// Mostly well before the newest revision, so that there is history to read.
	return &pb.CompactionRequest{Revision: max(1, r.revision-r.Int64N(200)), Physical: r.yes(2)}
}

func (r requests) watch(end int64) *pb.WatchCreateRequest {
	c := &pb.WatchCreateRequest{Key: r.key(), RangeEnd: r.end(), StartRevision: end - r.Int64N(min(end, 300)), PrevKv: r.yes(2), WatchId: r.Int64N(3)}
	for _, f := range []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT, pb.WatchCreateRequest_NODELETE} {
		if r.yes(5) {
			c.Filters = append(c.Filters, f)
		}
	}
	return c
}

// streamed is a request that is answered in chunks.
type streamed struct{ *pb.RangeRequest }

// A caller sends requests without etcd's client, which would retry them.
type caller struct {
	kv      pb.KVClient
	lease   pb.LeaseClient
	watcher pb.WatchClient
}

// connect returns a caller of the etcd API at an endpoint.
func connect(t *testing.T, endpoint string) caller {
	t.Helper()
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return caller{pb.NewKVClient(conn), pb.NewLeaseClient(conn), pb.NewWatchClient(conn)}
}

// An answer is a response or an error, without what differs between clusters.
type answer struct {
	text     string
	revision int64
}

func (p caller) do(ctx context.Context, req any) answer {
	var resp interface {
		GetHeader() *pb.ResponseHeader
		String() string
	}
	var err error
	switch req := req.(type) {
	case *pb.PutRequest:
		resp, err = p.kv.Put(ctx, req)
	case *pb.RangeRequest:
		resp, err = p.kv.Range(ctx, req)
	case streamed:
		resp, err = p.stream(ctx, req)
	case *pb.DeleteRangeRequest:
		resp, err = p.kv.DeleteRange(ctx, req)
	case *pb.TxnRequest:
		resp, err = p.kv.Txn(ctx, req)
	case *pb.CompactionRequest:
		resp, err = p.kv.Compact(ctx, req)
	case *pb.LeaseGrantRequest:
		resp, err = p.lease.LeaseGrant(ctx, req)
	case *pb.LeaseRevokeRequest:
		resp, err = p.lease.LeaseRevoke(ctx, req)
	case *pb.LeaseTimeToLiveRequest:
		var left *pb.LeaseTimeToLiveResponse
		if left, err = p.lease.LeaseTimeToLive(ctx, req); err == nil && left.TTL > 0 {
			left.TTL = left.GrantedTTL // the servers were asked at different times
			slices.SortFunc(left.Keys, bytes.Compare)
		}
		resp = left
	default:
		err = errors.New("unknown request")
	}
	if err != nil {
		return answer{text: fmt.Sprintf("%v %s", status.Code(err), status.Convert(err).Message())}
	}
	h := resp.GetHeader()
	h.ClusterId, h.MemberId, h.RaftTerm = 0, 0, 0
	return answer{resp.String(), h.Revision}
}

// watch returns everything that a watch sends up to the revision end.
func (p caller) watch(ctx context.Context, t *testing.T, c *pb.WatchCreateRequest, end int64) string {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := p.watcher.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: c}}); err != nil {
		t.Fatal(err)
	}
	// etcd answers a request for progress only when it has nothing else to send.
	go func() {
		for ctx.Err() == nil {
			stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
			time.Sleep(20 * time.Millisecond)
		}
	}()
	var b strings.Builder
	for {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatalf("receive: %v, after %s", err, &b)
		}
		switch {
		case resp.WatchId == -1 && !resp.Canceled:
			if resp.Header.Revision >= end {
				return b.String()
			}
		case len(resp.Events) > 0: // the number of responses does not matter
			fmt.Fprintf(&b, "watch %d: ", resp.WatchId)
			for _, e := range resp.Events {
				fmt.Fprintf(&b, "%v\n", e)
			}
		default:
			fmt.Fprintf(&b, "watch %d: created %v canceled %v compacted %d %s\n", resp.WatchId, resp.Created, resp.Canceled, resp.CompactRevision, resp.CancelReason)
			if resp.Canceled {
				return b.String()
			}
		}
	}
}
