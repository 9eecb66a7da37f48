package datastore

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// model is the simplest implementation of the engine: a list of all events, and a map for every
// revision. It shares only the request types and inRange with the engine.
type model struct {
	revision  int64
	compacted int64
	states    map[int64]map[string]KeyValue // by revision, from the compaction on
	events    []Event
}

func newModel() *model {
	return &model{revision: 1, states: map[int64]map[string]KeyValue{1: {}}}
}

func (m *model) state() map[string]KeyValue { return m.states[m.revision] }

// size returns the number of keys, and the bytes of keys and values.
func (m *model) size() (keys, bytes int64) {
	for key, kv := range m.state() {
		keys++
		bytes += int64(len(key) + len(kv.Value))
	}
	return keys, bytes
}

func (m *model) get(req RangeRequest, now map[string]KeyValue, revision int64) (*RangeResponse, error) {
	state := now
	if req.Revision > revision {
		return nil, ErrFutureRevision
	}
	if req.Revision != 0 && req.Revision < m.compacted {
		return nil, ErrCompacted
	}
	if req.Revision != 0 && req.Revision != revision {
		state = m.states[req.Revision]
	}
	resp := &RangeResponse{Revision: revision}
	for _, key := range slices.Sorted(maps.Keys(state)) {
		if !inRange(key, req.Key, req.End) {
			continue
		}
		resp.Count++
		if req.CountOnly {
			continue
		}
		if req.Limit > 0 && int64(len(resp.KVs)) == req.Limit {
			resp.More = true
			continue
		}
		kv := state[key]
		if req.KeysOnly {
			kv.Value = nil
		}
		resp.KVs = append(resp.KVs, kv)
	}
	return resp, nil
}

func (m *model) holds(c Compare) bool {
	found := false
	for key, kv := range m.state() {
		if !inRange(key, c.Key, c.End) {
			continue
		}
		found = true
		n := map[CompareTarget]int64{CompareVersion: kv.Version, CompareCreateRevision: kv.CreateRevision, CompareModRevision: kv.ModRevision, CompareLease: kv.Lease}[c.Target]
		order := cmp.Compare(n, c.Number)
		if c.Target == CompareValue {
			order = strings.Compare(string(kv.Value), string(c.Value))
		}
		if !related(order, c.Result) {
			return false
		}
	}
	if !found {
		return c.Target != CompareValue && related(cmp.Compare(0, c.Number), c.Result)
	}
	return true
}

func related(order int, r CompareResult) bool {
	return map[CompareResult]bool{Equal: order == 0, Greater: order > 0, Less: order < 0, NotEqual: order != 0}[r]
}

func (m *model) txn(req TxnRequest) (*TxnResponse, error) {
	resp := &TxnResponse{Succeeded: true}
	for _, c := range req.Compare {
		resp.Succeeded = resp.Succeeded && m.holds(c)
	}
	ops := req.Then
	if !resp.Succeeded {
		ops = req.Else
	}
	next, rev, events := maps.Clone(m.state()), m.revision, []Event(nil)
	for _, op := range ops {
		var out OpResponse
		switch {
		case op.Range != nil:
			at := *op.Range
			if at.Revision == rev && rev == m.revision {
				at.Revision = 0
			}
			if at.Revision > m.revision {
				return nil, ErrFutureRevision
			}
			r, err := m.get(at, next, rev)
			if err != nil {
				return nil, err
			}
			out.Range = r
		case op.Put != nil:
			old, was := next[op.Put.Key]
			rev = m.revision + 1
			kv := KeyValue{Key: op.Put.Key, Value: op.Put.Value, ModRevision: rev, CreateRevision: rev, Version: 1}
			out.Put = &PutResponse{Revision: rev}
			event := Event{KV: kv}
			if was {
				event.KV.CreateRevision, event.KV.Version = old.CreateRevision, old.Version+1
				event.Prev = &old
				if op.Put.PrevKV {
					out.Put.Prev = &old
				}
			}
			next[kv.Key] = event.KV
			events = append(events, event)
		case op.Delete != nil:
			out.Delete = &DeleteResponse{}
			for _, key := range slices.Sorted(maps.Keys(next)) {
				if !inRange(key, op.Delete.Key, op.Delete.End) {
					continue
				}
				rev = m.revision + 1
				old := next[key]
				delete(next, key)
				out.Delete.Deleted++
				if op.Delete.PrevKV {
					out.Delete.Prev = append(out.Delete.Prev, old)
				}
				events = append(events, Event{Type: EventDelete, KV: KeyValue{Key: key, ModRevision: rev}, Prev: &old})
			}
			out.Delete.Revision = rev
		}
		resp.Responses = append(resp.Responses, out)
	}
	resp.Revision = rev
	m.revision = rev
	m.states[rev] = next
	m.events = append(m.events, events...)
	return resp, nil
}

func (m *model) compact(revision int64) error {
	switch {
	case revision > m.revision && revision > m.compacted:
		return ErrFutureRevision
	case revision <= m.compacted:
		return ErrCompacted
	}
	m.compacted = revision
	maps.DeleteFunc(m.states, func(r int64, _ map[string]KeyValue) bool { return r < revision })
	m.events = slices.DeleteFunc(m.events, func(e Event) bool { return e.KV.ModRevision < revision })
	return nil
}

// since returns what a watch from start sees. Events of the compaction revision itself have no
// previous value any more.
func (m *model) since(start int64, key, end string) []Event {
	var out []Event
	for _, e := range m.events {
		if e.KV.ModRevision < start || !inRange(e.KV.Key, key, end) {
			continue
		}
		if e.KV.ModRevision <= m.compacted {
			e.Prev = nil
		}
		out = append(out, e)
	}
	return out
}

// show formats an answer for comparison. It replaces an error by its kind.
func show(v any, err error) string {
	for _, kind := range []error{ErrCompacted, ErrFutureRevision, ErrDuplicateKey, ErrEmptyKey} {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	if err != nil {
		return "unexpected: " + err.Error()
	}
	return describe(v)
}

func describe(v any) string {
	var b strings.Builder
	kv := func(kv KeyValue) {
		fmt.Fprintf(&b, " %s=%q/%d/%d/%d", kv.Key, kv.Value, kv.CreateRevision, kv.ModRevision, kv.Version)
	}
	switch v := v.(type) {
	case *RangeResponse:
		fmt.Fprintf(&b, "range@%d count %d more %v", v.Revision, v.Count, v.More)
		for _, x := range v.KVs {
			kv(x)
		}
	case *TxnResponse:
		fmt.Fprintf(&b, "txn@%d %v", v.Revision, v.Succeeded)
		for _, r := range v.Responses {
			switch {
			case r.Range != nil:
				fmt.Fprintf(&b, " [%s]", describe(r.Range))
			case r.Put != nil:
				fmt.Fprintf(&b, " [put@%d", r.Put.Revision)
				if r.Put.Prev != nil {
					kv(*r.Put.Prev)
				}
				b.WriteString("]")
			case r.Delete != nil:
				fmt.Fprintf(&b, " [delete@%d %d", r.Delete.Revision, r.Delete.Deleted)
				for _, x := range r.Delete.Prev {
					kv(x)
				}
				b.WriteString("]")
			}
		}
	case []Event:
		for _, e := range v {
			fmt.Fprintf(&b, "\n%v", e.Type)
			kv(e.KV)
			if e.Prev != nil {
				b.WriteString(" was")
				kv(*e.Prev)
			}
		}
	}
	return b.String()
}
