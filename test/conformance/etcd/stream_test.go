package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// stream puts the chunks of an answer together.
func (p caller) stream(ctx context.Context, r streamed) (*pb.RangeResponse, error) {
	stream, err := p.kv.RangeStream(ctx, r.RangeRequest)
	if err != nil {
		return nil, err
	}
	whole := &pb.RangeResponse{}
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return whole, nil
		}
		if err != nil {
			return nil, err
		}
		if whole.Header != nil {
			return nil, errors.New("a chunk comes after the one with the header")
		}
		proto.Merge(whole, chunk.RangeResponse)
	}
}

// TestSameChunksAsEtcd reads more than fits into a few chunks. A sort target without an order is not
// compared: etcd sorts each chunk, continues after its last key, and so skips keys
// (server/etcdserver/v3_server.go, rangeStream). Karve refuses it.
func TestSameChunksAsEtcd(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an etcd")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	ours, theirs := connect(t, serveKarve(ctx, t)), connect(t, serveEtcd(ctx, t))
	const keys = 400
	for _, p := range []caller{ours, theirs} {
		for i := range keys {
			p.put(ctx, t, fmt.Sprintf("k%03d", i), bytes.Repeat([]byte{byte(i)}, i*100))
		}
		p.put(ctx, t, "k000", nil) // the revision before has all keys too
	}
	for name, r := range map[string]*pb.RangeRequest{
		"everything":         {Key: []byte("k"), RangeEnd: []byte("l")},
		"a limit":            {Key: []byte("k"), RangeEnd: []byte("l"), Limit: 10},
		"a limit of one key": {Key: []byte("k"), RangeEnd: []byte("l"), Limit: 1},
		"all keys":           {Key: []byte("k"), RangeEnd: []byte("l"), Limit: keys},
		"all but one":        {Key: []byte("k"), RangeEnd: []byte("l"), Limit: keys - 1},
		"an old revision":    {Key: []byte("k"), RangeEnd: []byte("l"), Limit: 300, Revision: keys + 1},
		"the rest of a page": {Key: []byte("k300\x00"), RangeEnd: []byte("l"), Limit: 50, Revision: keys + 1},
		"keys only":          {Key: []byte("k"), RangeEnd: []byte("l"), KeysOnly: true},
		"a count":            {Key: []byte("k"), RangeEnd: []byte("l"), CountOnly: true, Limit: 3},
		"nothing":            {Key: []byte("x"), RangeEnd: []byte("y")},
		"one key":            {Key: []byte("k300")},
		"another order":      {Key: []byte("k"), RangeEnd: []byte("l"), SortOrder: pb.RangeRequest_DESCEND},
		"a filter":           {Key: []byte("k"), RangeEnd: []byte("l"), MinModRevision: 3},
		"no key":             {},
		"the future":         {Key: []byte("k"), RangeEnd: []byte("l"), Revision: 10 * keys},
	} {
		got, want := ours.chunks(ctx, r), theirs.chunks(ctx, r)
		if len(got) != len(want) {
			t.Errorf("%s: %d chunks %q, want %d %q", name, len(got), got, len(want), want)
			continue
		}
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("%s: chunk %d is %s, want %s", name, i, got[i], want[i])
			}
		}
	}
}

func (p caller) put(ctx context.Context, t *testing.T, key string, value []byte) {
	t.Helper()
	if _, err := p.kv.Put(ctx, &pb.PutRequest{Key: []byte(key), Value: value}); err != nil {
		t.Fatal(err)
	}
}

// chunks describes each chunk of an answer, and the error.
func (p caller) chunks(ctx context.Context, r *pb.RangeRequest) (all []string) {
	stream, err := p.kv.RangeStream(ctx, r)
	for err == nil {
		var m *pb.RangeStreamResponse
		if m, err = stream.Recv(); err != nil {
			break
		}
		chunk, size := m.RangeResponse, 0
		if h := chunk.Header; h != nil {
			h.ClusterId, h.MemberId, h.RaftTerm = 0, 0, 0
		}
		for _, kv := range chunk.Kvs {
			size += len(kv.Value)
			kv.Value = nil
		}
		all = append(all, fmt.Sprintf("%d bytes, %v", size, chunk))
	}
	if !errors.Is(err, io.EOF) {
		all = append(all, fmt.Sprintf("%v %s", status.Code(err), status.Convert(err).Message()))
	}
	return all
}
