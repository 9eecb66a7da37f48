package datastore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// txn evaluates one transaction in two passes. prepare finds every reason to refuse it and reads what it needs
// from the disk, and changes nothing. apply cannot fail.
type txn struct {
	e          *Engine
	b          *batch
	revision   int64 // of the speculative state, with this transaction's changes
	subs       int
	needsSpace bool
	deletes    bool
	path       []bool              // the branch that each nested transaction takes, in order of evaluation
	step       int                 // next of path while applying
	values     map[*version][]byte // values read for the response
}

// checkTxn refuses a request that is wrong whatever the state is.
func checkTxn(req *TxnRequest) error {
	_, err := checkBranches(req)
	return err
}

// checkBranches is checkTxn, and returns what each branch may write.
func checkBranches(req *TxnRequest) ([]*written, error) {
	for _, c := range req.Compare {
		if c.Key == "" {
			return nil, ErrEmptyKey
		}
	}
	then, err := checkOps(req.Then)
	if err != nil {
		return nil, err
	}
	other, err := checkOps(req.Else)
	return []*written{then, other}, err
}

// written is the keys that a branch may write.
type written struct {
	puts    map[string]bool
	deletes []*DeleteRequest
}

func (w *written) overlaps(o *written) (string, bool) {
	for k := range o.puts {
		if w.puts[k] {
			return k, true
		}
		for _, d := range w.deletes {
			if inRange(k, d.Key, d.End) {
				return k, true
			}
		}
	}
	return "", false
}

// checkOps refuses a branch that writes a key twice, or puts and deletes it, as etcd does
// (server/etcdserver/api/v3rpc/key.go, checkIntervals).
func checkOps(ops []Op) (*written, error) {
	w := &written{puts: map[string]bool{}}
	for i := range ops {
		switch op := &ops[i]; {
		case op.Put != nil:
			if op.Put.Key == "" {
				return nil, ErrEmptyKey
			}
			if w.puts[op.Put.Key] {
				return nil, fmt.Errorf("%w: %q", ErrDuplicateKey, op.Put.Key)
			}
			w.puts[op.Put.Key] = true
		case op.Delete != nil:
			if op.Delete.Key == "" {
				return nil, ErrEmptyKey
			}
			w.deletes = append(w.deletes, op.Delete)
		case op.Range != nil:
			if op.Range.Key == "" {
				return nil, ErrEmptyKey
			}
		}
	}
	if k, bad := (&written{deletes: w.deletes}).overlaps(w); bad {
		return nil, fmt.Errorf("%w: %q", ErrDuplicateKey, k)
	}
	for i := range ops {
		if ops[i].Txn == nil {
			continue
		}
		branches, err := checkBranches(ops[i].Txn)
		if err != nil {
			return nil, err
		}
		for _, branch := range branches {
			if k, bad := w.overlaps(branch); bad {
				return nil, fmt.Errorf("%w: %q", ErrDuplicateKey, k)
			}
			if k, bad := branch.overlaps(w); bad {
				return nil, fmt.Errorf("%w: %q", ErrDuplicateKey, k)
			}
		}
		for _, branch := range branches {
			for k := range branch.puts {
				w.puts[k] = true
			}
			w.deletes = append(w.deletes, branch.deletes...)
		}
	}
	return w, nil
}

// prepare chooses the branches, checks their operations against the state, and fetches the values for the
// response.
func (t *txn) prepare(req *TxnRequest) error {
	succeeded := true
	for i := range req.Compare {
		ok, err := t.holds(&req.Compare[i])
		if err != nil {
			return err
		}
		if !ok {
			succeeded = false
			break
		}
	}
	t.path = append(t.path, succeeded)
	ops := req.Then
	if !succeeded {
		ops = req.Else
	}
	for i := range ops {
		var err error
		switch op := &ops[i]; {
		case op.Range != nil:
			err = t.prepareRange(op.Range)
		case op.Put != nil:
			err = t.preparePut(op.Put)
		case op.Delete != nil:
			err = t.prepareDelete(op.Delete)
		case op.Txn != nil:
			err = t.prepare(op.Txn)
		}
		if err != nil {
			return err
		}
	}
	if t.subs > sqlitefile.MaxSubs {
		return fmt.Errorf("%w: %d", ErrTooManyChanges, t.subs)
	}
	return nil
}

func (t *txn) prepareRange(r *RangeRequest) error {
	spec := &t.e.spec
	if r.Revision > spec.revision {
		return fmt.Errorf("%w: %d, the newest is %d", ErrFutureRevision, r.Revision, spec.revision)
	}
	if c := t.e.compacted; r.Revision != 0 && r.Revision < c {
		return fmt.Errorf("%w: %d, compacted to %d", ErrCompacted, r.Revision, c)
	}
	if r.KeysOnly || r.CountOnly {
		return nil
	}
	limit := r.Limit
	if t.deletes {
		limit = 0 // keys beyond the limit move up when those before are deleted
	}
	hits, _ := spec.find(RangeRequest{Key: r.Key, End: r.End, Revision: r.Revision, Limit: limit})
	return t.fetch(hits...)
}

func (t *txn) preparePut(p *PutRequest) error {
	t.subs++
	t.needsSpace = true
	current, _ := t.e.spec.live.Get(p.Key)
	if current == nil && (p.IgnoreValue || p.IgnoreLease) {
		return fmt.Errorf("%w: %q", ErrKeyNotFound, p.Key)
	}
	if p.Lease != 0 && !p.IgnoreLease && t.e.leases.find(p.Lease) == nil {
		return fmt.Errorf("%w: %d", ErrLeaseNotFound, p.Lease)
	}
	if current != nil && (p.PrevKV || p.IgnoreValue) {
		return t.fetch(current)
	}
	return nil
}

func (t *txn) prepareDelete(d *DeleteRequest) error {
	t.deletes = true
	if !d.PrevKV {
		t.subs += int(t.e.spec.count(d.Key, d.End))
		return nil
	}
	hits, _ := t.e.spec.find(RangeRequest{Key: d.Key, End: d.End})
	t.subs += len(hits)
	return t.fetch(hits...)
}

// fetch reads the values of vs for apply.
func (t *txn) fetch(vs ...*version) error {
	for _, v := range vs {
		value, err := t.e.value(v)
		if err != nil {
			return err
		}
		if t.values == nil {
			t.values = make(map[*version][]byte, len(vs))
		}
		t.values[v] = value
	}
	return nil
}

// apply runs the branch that prepare has chosen.
func (t *txn) apply(req *TxnRequest) *TxnResponse {
	t.subs = 0
	return t.branch(req, t.revision+1)
}

func (t *txn) branch(req *TxnRequest, revision int64) *TxnResponse {
	resp := &TxnResponse{Succeeded: t.path[t.step]}
	t.step++
	ops := req.Then
	if !resp.Succeeded {
		ops = req.Else
	}
	resp.Responses = make([]OpResponse, len(ops))
	for i := range ops {
		out := &resp.Responses[i]
		switch op := &ops[i]; {
		case op.Range != nil:
			out.Range = t.find(op.Range)
		case op.Put != nil:
			out.Put = t.put(op.Put, revision)
		case op.Delete != nil:
			out.Delete = t.delete(op.Delete, revision)
		case op.Txn != nil:
			out.Txn = t.branch(op.Txn, revision)
		}
	}
	resp.Revision = t.revision
	return resp
}

// next returns the row id of the next change. The first change begins the revision.
func (t *txn) next(revision int64) int64 {
	t.revision = revision
	t.e.spec.revision = revision
	id := sqlitefile.RowID(revision, t.subs)
	t.subs++
	return id
}

func (t *txn) keyValue(v *version, keysOnly bool) KeyValue {
	kv := v.header()
	if keysOnly {
		return kv
	}
	if value, ok := t.values[v]; ok {
		kv.Value = value
	} else if p := v.value.Load(); p != nil {
		kv.Value = *p // this transaction has written it
	}
	return kv
}

func (t *txn) find(r *RangeRequest) *RangeResponse {
	hits, count := t.e.spec.find(*r)
	resp := &RangeResponse{Revision: t.revision, Count: count, More: !r.CountOnly && count > int64(len(hits))}
	for _, v := range hits {
		resp.KVs = append(resp.KVs, t.keyValue(v, r.KeysOnly))
	}
	return resp
}

func (t *txn) put(p *PutRequest, revision int64) *PutResponse {
	v := &version{Row: sqlitefile.Row{ID: t.next(revision), Key: strings.Clone(p.Key), Create: revision, Version: 1, Lease: p.Lease}}
	value := p.Value
	if value == nil {
		value = []byte{}
	}
	resp := &PutResponse{Revision: revision}
	if current, ok := t.e.spec.live.Get(p.Key); ok {
		v.Create, v.Version = current.Create, current.Version+1
		if p.IgnoreValue {
			value = t.keyValue(current, false).Value
		}
		if p.IgnoreLease {
			v.Lease = current.Lease
		}
		if p.PrevKV {
			kv := t.keyValue(current, false)
			resp.Prev = &kv
		}
	}
	t.e.change(t.b, v, value)
	return resp
}

func (t *txn) delete(d *DeleteRequest, revision int64) *DeleteResponse {
	hits, _ := t.e.spec.find(RangeRequest{Key: d.Key, End: d.End})
	resp := &DeleteResponse{Deleted: int64(len(hits))}
	for _, v := range hits {
		if d.PrevKV {
			resp.Prev = append(resp.Prev, t.keyValue(v, false))
		}
		t.e.change(t.b, &version{Row: sqlitefile.Row{ID: t.next(revision), Key: v.Key}}, nil)
	}
	resp.Revision = t.revision
	return resp
}

// holds evaluates one compare (etcd: server/etcdserver/txn/txn.go, applyCompare).
func (t *txn) holds(c *Compare) (bool, error) {
	hits, _ := t.e.spec.find(RangeRequest{Key: c.Key, End: c.End})
	if len(hits) == 0 {
		if c.Target == CompareValue {
			return false, nil // a missing key is neither equal nor unequal to a value
		}
		return c.Result.of(cmp.Compare(0, c.Number)), nil
	}
	for _, v := range hits {
		var order int
		switch c.Target {
		case CompareVersion:
			order = cmp.Compare(v.Version, c.Number)
		case CompareCreateRevision:
			order = cmp.Compare(v.Create, c.Number)
		case CompareModRevision:
			order = cmp.Compare(v.Revision(), c.Number)
		case CompareLease:
			order = cmp.Compare(v.Lease, c.Number)
		case CompareValue:
			value, err := t.e.value(v)
			if err != nil {
				return false, err
			}
			order = bytes.Compare(value, c.Value)
		}
		if !c.Result.of(order) {
			return false, nil
		}
	}
	return true, nil
}

func (r CompareResult) of(order int) bool {
	switch r {
	case Equal:
		return order == 0
	case Greater:
		return order > 0
	case Less:
		return order < 0
	}
	return order != 0
}

// Put sets a key.
func (e *Engine) Put(ctx context.Context, req PutRequest) (*PutResponse, error) {
	resp, err := e.Txn(ctx, TxnRequest{Then: []Op{{Put: &req}}})
	if err != nil {
		return nil, err
	}
	return resp.Responses[0].Put, nil
}

// Delete removes a key or a range in one revision. If there is nothing to remove, the revision stays.
func (e *Engine) Delete(ctx context.Context, req DeleteRequest) (*DeleteResponse, error) {
	resp, err := e.Txn(ctx, TxnRequest{Then: []Op{{Delete: &req}}})
	if err != nil {
		return nil, err
	}
	return resp.Responses[0].Delete, nil
}
