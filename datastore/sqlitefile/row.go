package sqlitefile

import (
	"database/sql/driver"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
)

// Row is a row of the log table, without its value. It is one change of one key.
type Row struct {
	ID      int64 // see [RowID]
	Key     string
	Create  int64 // revision in which the key was last created; 0 for a tombstone
	Version int64 // 0 for a tombstone
	Lease   int64
}

const subBits = 16

// MaxSubs is the number of changes that one revision can hold.
const MaxSubs = 1 << subBits

// MaxRevision is the highest revision that fits into a row id.
const MaxRevision = 1<<(63-subBits) - 1

// RowID returns the id of change number sub of a revision: revision<<16 | sub.
func RowID(revision int64, sub int) int64 { return revision<<subBits | int64(sub) }

// RevisionOf returns the revision of a row id.
func RevisionOf(id int64) int64 { return id >> subBits }

// Revision returns the revision of the change.
func (r *Row) Revision() int64 { return RevisionOf(r.ID) }

// Tombstone reports whether the change deleted the key.
func (r *Row) Tombstone() bool { return r.Version == 0 }

// flagTombstone marks a row whose change deleted the key.
const flagTombstone = 1

// Flags returns the flags of the row in the log table.
func (r *Row) Flags() int64 {
	if r.Tombstone() {
		return flagTombstone
	}
	return 0
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the CRC32C of all columns of the row; value is nil for a tombstone.
func (r *Row) Checksum(value []byte) int64 {
	var b [44]byte
	le := binary.LittleEndian
	le.PutUint64(b[0:], uint64(r.ID))
	le.PutUint64(b[8:], uint64(r.Create))
	le.PutUint64(b[16:], uint64(r.Version))
	le.PutUint64(b[24:], uint64(r.Lease))
	le.PutUint32(b[32:], uint32(r.Flags()))
	le.PutUint32(b[36:], uint32(len(r.Key)))
	le.PutUint32(b[40:], uint32(len(value)))
	sum := crc32.Update(0, castagnoli, b[:])
	sum = crc32.Update(sum, castagnoli, []byte(r.Key))
	return int64(crc32.Update(sum, castagnoli, value))
}

// AllRows is an id before every row.
const AllRows = math.MinInt64

const rowColumns = `id, key, flags, create_revision, version, lease, crc, value`

// decodeRow makes a Row of rowColumns. If the checksum is wrong, the error is [ErrCorrupt], and
// the Row has only an ID and a Key.
func decodeRow(path string, columns []driver.Value) (Row, []byte, error) {
	number := func(i int) int64 { n, _ := columns[i].(int64); return n }
	key, _ := columns[1].([]byte)
	value, _ := columns[7].([]byte)
	r := Row{ID: number(0), Key: string(key), Create: number(3), Version: number(4), Lease: number(5)}
	if r.Checksum(value) != number(6) || r.Flags() != number(2) {
		return Row{ID: r.ID, Key: r.Key}, nil, fmt.Errorf("%w: %s: row %d (revision %d) has a bad checksum (%s)", ErrCorrupt, path, r.ID, r.Revision(), Remedy)
	}
	if value == nil {
		value = []byte{}
	}
	return r, value, nil
}

// EachRow calls do for every row of the log table with at least the id from, in order. An error of
// do ends it, and is returned as it is. For a row with a wrong checksum bad is [ErrCorrupt], and r
// has only an ID and a Key.
func (c *Connection) EachRow(from int64, do func(r Row, value []byte, bad error) error) error {
	return c.Query(`SELECT `+rowColumns+` FROM log WHERE id >= ? ORDER BY id`, func(columns []driver.Value) error {
		return do(decodeRow(c.path, columns))
	}, from)
}

// RowSum spreads an id over 64 bits, so that the sums of two different sets of rows differ (the
// finalizer of MurmurHash3).
func RowSum(id int64) int64 {
	x := uint64(id)
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return int64(x ^ x>>33)
}

// RowAt reads the row with that id. The error is [ErrRowMissing] if there is none.
func (c *Connection) RowAt(id int64) (r Row, value []byte, err error) {
	found := false
	err = c.Query(`SELECT `+rowColumns+` FROM log WHERE id >= ? ORDER BY id LIMIT 1`, func(columns []driver.Value) (err error) {
		r, value, err = decodeRow(c.path, columns)
		found = r.ID == id
		return err
	}, id)
	if err == nil && !found {
		err = ErrRowMissing
	}
	return r, value, err
}

// Newest calls do with the newest version of each key from first up to, but without, end, in the order of
// keys. It leaves out deleted ones. An empty end means only the key first. An error of do ends it, and is
// returned as it is.
func (c *Connection) Newest(first, end string, do func(r Row, value []byte) error) error {
	if end == "" {
		end = first + "\x00"
	}
	var ids []int64
	err := c.Query(`SELECT MAX(id), flags FROM log WHERE key >= ? AND key < ? GROUP BY key ORDER BY key`, func(columns []driver.Value) error {
		if id, _ := columns[0].(int64); columns[1] != int64(flagTombstone) {
			ids = append(ids, id)
		}
		return nil
	}, []byte(first), []byte(end))
	for _, id := range ids {
		if err != nil {
			break
		}
		var r Row
		var value []byte
		if r, value, err = c.RowAt(id); err == nil {
			err = do(r, value)
		}
	}
	return err
}
