package etcdapi

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Codec is protobuf for a gRPC server that speaks etcd's API. gRPC's own codec cannot send
// bytes that exist already, such as the events of a watch.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name)} }

type codec struct{ encoding.CodecV2 }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(*watchMessage); ok {
		return m.parts, nil
	}
	return c.CodecV2.Marshal(v)
}
