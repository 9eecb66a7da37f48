package etcdapi

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Codec is protobuf for a gRPC server that speaks etcd's API. gRPC's own codec finds the size
// of a message of etcd's older generation by marshalling it once more, and cannot send bytes
// that exist already, such as the events of a watch.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name)} }

type codec struct{ encoding.CodecV2 }

// generated is what etcd's messages implement.
type generated interface {
	Size() int
	MarshalToSizedBuffer(to []byte) (int, error)
	Unmarshal(from []byte) error
}

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *watchMessage:
		return m.parts, nil
	case generated:
		size := m.Size()
		if mem.IsBelowBufferPoolingThreshold(size) {
			data := make([]byte, size)
			_, err := m.MarshalToSizedBuffer(data)
			return mem.BufferSlice{mem.SliceBuffer(data)}, err
		}
		pool := mem.DefaultBufferPool()
		data := pool.Get(size)
		if _, err := m.MarshalToSizedBuffer((*data)[:size]); err != nil {
			pool.Put(data)
			return nil, err
		}
		return mem.BufferSlice{mem.NewBuffer(data, pool)}, nil
	}
	return c.CodecV2.Marshal(v) // a message of the health service
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(generated)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free() // Unmarshal has copied what it needs
	return m.Unmarshal(whole.ReadOnlyData())
}
