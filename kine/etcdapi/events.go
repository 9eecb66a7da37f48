package etcdapi

import (
	"encoding/binary"
	"hash/maphash"
	"sync/atomic"
	"weak"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/karve-k8s/karve/datastore"
)

// watchMessage is a marshalled WatchResponse: a head of its own, and events that it shares
// with other watchers. A message can be assembled from pieces because the wire format is a
// sequence of fields.
type watchMessage struct{ parts mem.BufferSlice }

// message marshals resp, which has no events, and appends encoded ones.
func message(resp *pb.WatchResponse, events []*encoded) (*watchMessage, error) {
	head, err := proto.Marshal(resp)
	if err != nil {
		return nil, err
	}
	m := &watchMessage{make(mem.BufferSlice, 1, 1+len(events))}
	m.parts[0] = mem.SliceBuffer(head)
	for _, e := range events {
		m.parts = append(m.parts, e.buffer)
	}
	return m, nil
}

// encoded is an event as a field of a WatchResponse: tag, length, Event.
type encoded struct{ buffer mem.Buffer }

func (e *encoded) size() int { return e.buffer.Len() }

// eventTag is the tag of WatchResponse.events: field 11, bytes.
const eventTag = 11<<3 | 2

// Event is e in etcd's form. It shares the values.
func Event(e *datastore.Event) *mvccpb.Event {
	out := &mvccpb.Event{Kv: KeyValue(&e.KV)}
	if e.Type == datastore.EventDelete {
		out.Type = mvccpb.DELETE
	}
	if e.Prev != nil {
		out.PrevKv = KeyValue(e.Prev)
	}
	return out
}

func encode(e *datastore.Event) (*encoded, error) {
	event := Event(e)
	size := proto.Size(event)
	data := binary.AppendUvarint(append(make([]byte, 0, 1+binary.MaxVarintLen64+size), eventTag), uint64(size))
	data, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(data, event)
	if err != nil {
		return nil, err
	}
	return &encoded{mem.SliceBuffer(data)}, nil
}

// eventCache finds the newest encoded events, so that many watchers of an event send the same
// bytes. It does not keep them alive: an event that nobody is sending goes with the next
// garbage collection.
type eventCache struct {
	slots [256]atomic.Pointer[cachedEvent]
}

// cachedEvent identifies an event. That is enough, because a revision changes a key once.
type cachedEvent struct {
	revision int64
	key      string
	prev     bool // the event has the previous key-value
	encoded  weak.Pointer[encoded]
}

var eventSeed = maphash.MakeSeed()

func (c *eventCache) get(e *datastore.Event) (*encoded, error) {
	slot := &c.slots[(maphash.String(eventSeed, e.KV.Key)+uint64(e.KV.ModRevision))%uint64(len(c.slots))]
	if have := slot.Load(); have != nil && have.revision == e.KV.ModRevision && have.key == e.KV.Key && have.prev == (e.Prev != nil) {
		if found := have.encoded.Value(); found != nil {
			return found, nil
		}
	}
	made, err := encode(e)
	if err != nil {
		return nil, err
	}
	slot.Store(&cachedEvent{e.KV.ModRevision, e.KV.Key, e.Prev != nil, weak.Make(made)})
	return made, nil
}
