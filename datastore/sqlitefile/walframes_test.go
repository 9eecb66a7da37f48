package sqlitefile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// One flipped bit in the header of any frame before the last transaction is damage. The
// header is where it can look like the end of the WAL: it has the salt, the commit mark
// and the sum that the next frame continues.
func TestFlippedBitsOfFrameHeaders(t *testing.T) {
	const frameSize = 24 + 4096
	path := filepath.Join(t.TempDir(), FileName)
	f, err := Open(path, false)
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(300) {
		r := oneRow{Row{ID: RowID(i+2, 0), Key: fmt.Sprintf("/k/%03d", i), Create: i + 2, Version: 1}, []byte(strings.Repeat(fmt.Sprint(i), 100))}
		if err := f.Commit(Batch{Rows: &r}); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(false); err != nil {
		t.Fatal(err)
	}
	wal, err := os.ReadFile(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	if bad, err := walDamage(bytes.NewReader(wal[32:]), wal[:32]); bad != 0 || err != nil {
		t.Fatalf("the whole WAL: frame %d is bad, %v", bad, err)
	}
	end := beforeLastCommit(wal)
	start := max(32, end-12*frameSize)
	if testing.Short() {
		start = max(32, end-4*frameSize)
	}
	for frame := start; frame < end; frame += frameSize {
		for bit := range 24 * 8 {
			at := frame + bit/8
			wal[at] ^= 1 << (bit % 8)
			bad, err := walDamage(bytes.NewReader(wal[32:]), wal[:32])
			if want := (frame-32)/frameSize + 1; bad != want || err != nil {
				t.Errorf("frame %d, byte %d, bit %d of the header: found damage in frame %d (%v)", want, bit/8, bit%8, bad, err)
			}
			wal[at] ^= 1 << (bit % 8)
		}
	}
}

// beforeLastCommit is where the last transaction of a WAL begins; bits after that
// can be taken for a torn write, by their nature.
func beforeLastCommit(wal []byte) int {
	const frame = 24 + 4096
	previous, end := 32, 32
	for at := 32; at+frame <= len(wal) && bytes.Equal(wal[at+8:at+16], wal[16:24]); at += frame {
		if binary.BigEndian.Uint32(wal[at+4:]) != 0 {
			previous, end = end, at+frame
		}
	}
	return previous
}

// oneRow is a single row to commit.
type oneRow struct {
	row   Row
	value []byte
}

func (r *oneRow) Len() int { return 1 }

func (r *oneRow) At(int) (*Row, []byte) { return &r.row, r.value }
