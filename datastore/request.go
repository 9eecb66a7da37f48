package datastore

// The requests and answers of the engine, in etcd's terms
// (https://etcd.io/docs/v3.6/learning/data_model/, api/etcdserverpb/rpc.proto).
//
// Keys are strings of any bytes. Values are shared with the engine and must not be modified.
//
// Key and End name a range: with an empty End it is the one key, with End "\x00" all keys from Key on, otherwise
// the keys in [Key, End). See [PrefixEnd].

// KeyValue is one version of a key.
type KeyValue struct {
	Key            string
	Value          []byte
	CreateRevision int64 // revision in which the key was last created
	ModRevision    int64 // revision of this version
	Version        int64 // 1 for a created key, one more with every put
	Lease          int64 // id of the lease the key is attached to, or 0
}

// RangeRequest asks for keys in order.
type RangeRequest struct {
	Key, End  string
	Revision  int64 // revision to read; 0 is the newest
	Limit     int64 // most keys to return; 0 is all
	KeysOnly  bool  // leave out the values
	CountOnly bool  // leave out the keys
	NoCount   bool  // do not count further than the limit; the count is then too small if there are more keys
}

// RangeResponse answers a [RangeRequest].
type RangeResponse struct {
	Revision int64 // revision of the store when the range was read
	KVs      []KeyValue
	More     bool  // there are keys beyond the limit
	Count    int64 // keys in the range, whatever the limit
}

// PutRequest sets a key.
type PutRequest struct {
	Key         string
	Value       []byte
	Lease       int64
	IgnoreValue bool // keep the key's value; ErrKeyNotFound for a missing key
	IgnoreLease bool // keep the key's lease; ErrKeyNotFound for a missing key
	PrevKV      bool // return the key before the put
}

// PutResponse answers a [PutRequest].
type PutResponse struct {
	Revision int64
	Prev     *KeyValue // nil if not asked for, or if the key did not exist
}

// DeleteRequest removes a key or a range.
type DeleteRequest struct {
	Key, End string
	PrevKV   bool // return the deleted keys
}

// DeleteResponse answers a [DeleteRequest].
type DeleteResponse struct {
	Revision int64
	Deleted  int64
	Prev     []KeyValue
}

// CompareTarget is the field of a key that a [Compare] compares.
type CompareTarget int

// Targets of a Compare. A missing key has 0 in every field and no value: a comparison with its value fails.
const (
	CompareVersion CompareTarget = iota
	CompareCreateRevision
	CompareModRevision
	CompareValue
	CompareLease
)

// CompareResult is the relation that a [Compare] requires.
type CompareResult int

// Relations of a Compare.
const (
	Equal CompareResult = iota
	Greater
	Less
	NotEqual
)

// Compare is a condition of a transaction. With End it has to hold for every key in the range.
type Compare struct {
	Key, End string
	Target   CompareTarget
	Result   CompareResult
	Number   int64  // to compare with, unless Target is CompareValue
	Value    []byte // to compare with if Target is CompareValue
}

// Op is one operation of a transaction; exactly one field is set.
type Op struct {
	Range  *RangeRequest
	Put    *PutRequest
	Delete *DeleteRequest
	Txn    *TxnRequest
}

// TxnRequest does Then if every Compare holds, and Else otherwise: all of it in one revision, or none of it.
type TxnRequest struct {
	Compare    []Compare
	Then, Else []Op
}

// TxnResponse answers a [TxnRequest]. Responses are in the order of the operations of the branch.
type TxnResponse struct {
	Revision  int64 // revision of the store after the transaction
	Succeeded bool  // every Compare held
	Responses []OpResponse
}

// OpResponse answers an [Op], in the field of the same name.
type OpResponse struct {
	Range  *RangeResponse
	Put    *PutResponse
	Delete *DeleteResponse
	Txn    *TxnResponse
}

// allKeys as an End means all keys from Key on; with allKeys as Key too, all keys.
const allKeys = "\x00"

// PrefixEnd returns the End of the range of all keys that begin with prefix. For all keys, use an empty prefix and
// the Key "\x00".
func PrefixEnd(prefix string) string {
	b := []byte(prefix)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] < 0xff {
			b[i]++
			return string(b[:i+1])
		}
	}
	return allKeys
}

// inRange reports whether k is in the range of key and end.
func inRange(k, key, end string) bool {
	switch end {
	case "":
		return k == key
	case allKeys:
		return k >= key
	}
	return k >= key && k < end
}
