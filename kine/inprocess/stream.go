package inprocess

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/karve-k8s/karve/kine/etcdapi"
)

// kv is etcd's client with another GetStream. That of etcd's client waits for ever for a reader
// that has stopped, and keeps two chunks (go.etcd.io/etcd/client/v3/kv.go).
type kv struct {
	clientv3.KV
	endpoint *Endpoint
}

// GetStream reads a range in chunks. All of them are read before it returns. The API server stops
// reading at the first object that it cannot decode, and leaves its context as it is
// (k8s.io/apiserver pkg/storage/etcd3, GetList), so nothing may wait for the reader.
func (k kv) GetStream(ctx context.Context, key string, opts ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	in, err := streamRequest(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	chunks, err := k.chunks(ctx, in)
	if err != nil {
		// The error alone: without it, the chunks so far would look like the whole range.
		failed := clientv3.RangeStreamResponse{}
		setField(&failed, "closeErr", clientv3.ContextError(ctx, err))
		chunks = []clientv3.RangeStreamResponse{failed}
	}
	out := make(chan clientv3.RangeStreamResponse, len(chunks))
	for _, chunk := range chunks {
		out <- chunk
	}
	close(out)
	return out, nil
}

// firstChunk is the number of keys in the first chunk of the engine. A chunk has about as many
// bytes as in etcd, but there is nothing to encode that would have to begin small.
const firstChunk = 500

// chunks reads a range.
func (k kv) chunks(ctx context.Context, in *pb.RangeRequest) (all []clientv3.RangeStreamResponse, err error) {
	if api, ok := k.endpoint.api.(*etcdapi.Server); ok {
		chunks, err := api.Chunks(in, firstChunk)
		if err != nil {
			return nil, err
		}
		for chunks.More() {
			resp, err := chunks.Next(ctx)
			if err != nil {
				return nil, err
			}
			all = append(all, clientv3.RangeStreamResponse{RangeResponse: resp})
		}
		return all, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(k.endpoint.ctx, cancel)()
	to := sink{ctx: ctx}
	err = k.endpoint.api.RangeStream(in, &to)
	return to.chunks, err
}

// sink is a stream that keeps what the server sends.
type sink struct {
	grpc.ServerStream
	ctx    context.Context
	chunks []clientv3.RangeStreamResponse
}

func (s *sink) Context() context.Context { return s.ctx }

func (s *sink) Send(m *pb.RangeStreamResponse) error {
	s.chunks = append(s.chunks, clientv3.RangeStreamResponse{RangeResponse: m.RangeResponse})
	return nil
}

// streamRequest is the request that etcd's client makes of the options.
func streamRequest(ctx context.Context, key string, opts []clientv3.OpOption) (*pb.RangeRequest, error) {
	var c capture
	_, err := clientv3.NewKVFromKVClient(&c, nil).GetStream(ctx, key, opts...)
	if c.in == nil {
		return nil, err
	}
	return c.in, nil
}

// capture keeps a request for a stream instead of sending it.
type capture struct {
	pb.KVClient
	in *pb.RangeRequest
}

func (c *capture) RangeStream(_ context.Context, in *pb.RangeRequest, _ ...grpc.CallOption) (pb.KV_RangeStreamClient, error) {
	c.in = in
	return nil, errNoStreams
}
