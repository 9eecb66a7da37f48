package inprocess

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
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

// chunks reads a range. It ends with the datastore, because the context may never end.
func (k kv) chunks(ctx context.Context, in *pb.RangeRequest) (all []clientv3.RangeStreamResponse, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(k.endpoint.ctx, cancel)()
	chunks, err := k.endpoint.store.List(ctx, in)
	for _, chunk := range chunks {
		all = append(all, clientv3.RangeStreamResponse{RangeResponse: chunk})
	}
	return all, err
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
	return nil, errUnserved
}
