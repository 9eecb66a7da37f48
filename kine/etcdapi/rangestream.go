package etcdapi

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/datastore"
)

// RangeStream returns keys in chunks, all of one revision. The last chunk alone has the header,
// the count, and tells whether there are more keys than the limit. No more than one chunk is in
// memory, whatever the size of the range.
func (s *Server) RangeStream(r *pb.RangeRequest, stream pb.KV_RangeStreamServer) error {
	c, err := NewChunks(s.engine, r, firstChunk)
	if err != nil {
		return err
	}
	for c.More() {
		resp, err := c.Next(stream.Context())
		if err != nil {
			return err
		}
		if err := stream.Send(&pb.RangeStreamResponse{RangeResponse: resp}); err != nil {
			return err
		}
	}
	return nil
}

// Errors of requests that cannot be answered in chunks, with etcd's texts
// (server/etcdserver/api/v3rpc/key.go).
var (
	errStreamOrder  = status.Error(codes.Unimplemented, "RangeStream does not support custom sort orders")
	errStreamFilter = status.Error(codes.Unimplemented, "RangeStream does not support revision filters")
)

// CheckRangeStream returns etcd's error for a request that cannot be answered in chunks.
func CheckRangeStream(r *pb.RangeRequest) error {
	switch err := checkRange(r); {
	case err != nil:
		return err
	case sorts(r): // etcd sorts each chunk if there is a target without an order, and skips keys
		return errStreamOrder
	case filters(r):
		return errStreamFilter
	}
	return nil
}

// firstChunk is the number of keys in the first chunk, as in etcd. nextChunk doubles or halves
// it until a chunk has about as many bytes as the largest write.
const firstChunk = 10

// Chunks reads a range piece by piece.
type Chunks struct {
	engine *datastore.Engine
	asked  *pb.RangeRequest
	req    datastore.RangeRequest // of the next chunk
	left   int64                  // keys until the limit; below 0: there is none
	newest int64                  // the store's revision when the first chunk was read
	sent   int64                  // keys in the chunks so far
	done   bool
}

// NewChunks is what [Server.RangeStream] sends, with a number of keys in the first chunk.
func NewChunks(engine *datastore.Engine, r *pb.RangeRequest, first int64) (*Chunks, error) {
	if err := CheckRangeStream(r); err != nil {
		return nil, err
	}
	key, end := bounds(r.Key, r.RangeEnd)
	c := &Chunks{engine: engine, asked: r, left: -1}
	if r.Limit > 0 {
		c.left = r.Limit
	}
	c.req = datastore.RangeRequest{
		Key: key, End: end, Revision: max(r.Revision, 0), Limit: c.bound(first), KeysOnly: r.KeysOnly, CountOnly: r.CountOnly,
	}
	return c, nil
}

// bound is a number of keys, or what is left until the limit.
func (c *Chunks) bound(keys int64) int64 {
	if c.left >= 0 {
		return min(keys, c.left)
	}
	return keys
}

// More tells whether there is another chunk. There is at least one.
func (c *Chunks) More() bool { return !c.done }

// Next reads a chunk. All chunks are of the revision of the first.
func (c *Chunks) Next(ctx context.Context) (*pb.RangeResponse, error) {
	// Only the last chunk has the count. A chunk that the limit ends is the last.
	c.req.NoCount = c.left < 0 || c.req.Limit < c.left
	resp, err := c.engine.Range(ctx, c.req)
	if err != nil {
		return nil, Status(err)
	}
	if c.newest == 0 {
		c.newest = resp.Revision
		if c.req.Revision == 0 {
			c.req.Revision = resp.Revision
		}
	}
	n := int64(len(resp.KVs))
	keysOnly(c.asked, resp.KVs)
	out := &pb.RangeResponse{Kvs: KeyValues(resp.KVs)}
	if c.left >= 0 {
		c.left -= n
	}
	if c.done = !resp.More || c.left == 0; c.done {
		out.Header, out.More, out.Count = header(c.newest), resp.More, c.sent+resp.Count
		return out, nil
	}
	c.sent += n
	c.req.Key = resp.KVs[n-1].Key + "\x00"
	c.req.Limit = c.bound(nextChunk(c.req.Limit, size(resp.KVs)))
	return out, nil
}

func size(kvs []datastore.KeyValue) (n int) {
	for i := range kvs {
		n += len(kvs[i].Key) + len(kvs[i].Value)
	}
	return n
}

// nextChunk is the number of keys of a chunk after one that had so many keys and bytes.
func nextChunk(keys int64, bytes int) int64 {
	switch {
	case bytes < maxRequest/2:
		return keys * 2
	case bytes > maxRequest*2:
		return max(keys/2, 1)
	}
	return keys
}
