package datastore

import (
	"errors"
	"fmt"
	"testing"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

func TestTxn(t *testing.T) {
	e := openTest(t, t.TempDir(), Options{})
	created := Compare{Key: "/a", Target: CompareModRevision, Number: 0}
	create := TxnRequest{
		Compare: []Compare{created},
		Then:    []Op{{Put: &PutRequest{Key: "/a", Value: []byte("1")}}, {Put: &PutRequest{Key: "/b", Value: []byte("2")}}, {Range: &RangeRequest{Key: "/", End: PrefixEnd("/")}}},
		Else:    []Op{{Range: &RangeRequest{Key: "/a"}}},
	}
	resp, err := e.Txn(t.Context(), create)
	if err != nil || !resp.Succeeded || resp.Revision != 2 {
		t.Fatalf("create: %+v, %v", resp, err)
	}
	if kvs := resp.Responses[2].Range.KVs; len(kvs) != 2 || string(kvs[0].Value) != "1" || kvs[1].ModRevision != 2 {
		t.Errorf("range in the transaction: %v, want both keys it put", kvs)
	}
	resp, err = e.Txn(t.Context(), create)
	if err != nil || resp.Succeeded || resp.Revision != 2 || string(resp.Responses[0].Range.KVs[0].Value) != "1" {
		t.Errorf("create again: %+v, %v", resp, err)
	}
	for _, c := range []struct {
		c    Compare
		want bool
	}{
		{Compare{Key: "/a", Target: CompareValue, Value: []byte("1")}, true},
		{Compare{Key: "/a", Target: CompareValue, Result: Greater, Value: []byte("0")}, true},
		{Compare{Key: "/none", Target: CompareValue, Result: NotEqual, Value: []byte("1")}, false},
		{Compare{Key: "/a", Target: CompareVersion, Number: 1}, true},
		{Compare{Key: "/", End: "/z", Target: CompareCreateRevision, Number: 2}, true},
		{Compare{Key: "/", End: "/z", Target: CompareValue, Value: []byte("1")}, false},
		{Compare{Key: "/a", Target: CompareLease, Result: Less, Number: 1}, true},
		{Compare{Key: "/a", Target: CompareModRevision, Result: Less, Number: 2}, false},
	} {
		resp, err := e.Txn(t.Context(), TxnRequest{Compare: []Compare{c.c}})
		if err != nil || resp.Succeeded != c.want {
			t.Errorf("%+v: got %v, %v; want %v", c.c, resp.Succeeded, err, c.want)
		}
	}
	twice := []Op{{Put: &PutRequest{Key: "/a"}}, {Put: &PutRequest{Key: "/a"}}}
	nested := []Op{{Put: &PutRequest{Key: "/a"}}, {Txn: &TxnRequest{Else: []Op{{Delete: &DeleteRequest{Key: "/", End: "/z"}}}}}}
	for _, ops := range [][]Op{twice, nested, {{Put: &PutRequest{Key: "/a"}}, {Delete: &DeleteRequest{Key: "/a"}}}} {
		if _, err := e.Txn(t.Context(), TxnRequest{Then: ops}); !errors.Is(err, ErrDuplicateKey) {
			t.Errorf("a key written twice: %v", err)
		}
	}
	resp, err = e.Txn(t.Context(), TxnRequest{Then: []Op{
		{Put: &PutRequest{Key: "/a", IgnoreValue: true, PrevKV: true}},
		{Txn: &TxnRequest{Compare: []Compare{{Key: "/a", Target: CompareVersion, Number: 1}}, Then: []Op{{Delete: &DeleteRequest{Key: "/b"}}}}},
	}})
	if err != nil || resp.Revision != 3 || !resp.Responses[1].Txn.Succeeded || resp.Responses[1].Txn.Responses[0].Delete.Deleted != 1 {
		t.Fatalf("nested: %+v, %v", resp, err)
	}
	wantValue(t, e, "/a", 0, "1")
	if _, err := e.Put(t.Context(), PutRequest{Key: "/none", IgnoreValue: true}); !errors.Is(err, ErrKeyNotFound) {
		t.Errorf("ignore value of no key: %v", err)
	}
	if _, err := e.Put(t.Context(), PutRequest{}); !errors.Is(err, ErrEmptyKey) {
		t.Errorf("empty key: %v", err)
	}
	many := make([]Op, sqlitefile.MaxSubs+1)
	for i := range many {
		many[i].Put = &PutRequest{Key: fmt.Sprint(i)}
	}
	if _, err := e.Txn(t.Context(), TxnRequest{Then: many}); !errors.Is(err, ErrTooManyChanges) {
		t.Errorf("65,537 changes: %v", err)
	}
	if got := e.Revision(); got != 3 {
		t.Errorf("revision after refused transactions: %d, want 3", got)
	}
}
