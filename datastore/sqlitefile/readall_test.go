package sqlitefile

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
)

// written makes a database whose ids are dense, then far apart, and returns the rows in order.
func written(t *testing.T) (*File, []oneRow) {
	t.Helper()
	f, err := Open(filepath.Join(t.TempDir(), FileName), Options{Relaxed: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close(false) })
	random := rand.New(rand.NewPCG(1, 2))
	var rows []oneRow
	revision := int64(1)
	for i := range int64(3000) {
		switch {
		case i == 1500:
			revision = 1 << 40
		case i > 2990:
			revision += 1 << 20
		case i%7 == 0:
			revision += 2
		default:
			revision++
		}
		value := bytes.Repeat([]byte{byte(i)}, random.IntN(300))
		if i%500 == 0 {
			value = bytes.Repeat([]byte{byte(i)}, 1<<19)
		}
		rows = append(rows, oneRow{Row{ID: RowID(revision, int(i%3)), Key: fmt.Sprint("/k/", i), Create: revision, Version: 1}, value})
	}
	if err := f.Commit(Batch{Rows: (*allRows)(&rows)}); err != nil {
		t.Fatal(err)
	}
	return f, rows
}

// allRows are the rows of a batch.
type allRows []oneRow

func (r *allRows) Len() int                { return len(*r) }
func (r *allRows) At(i int) (*Row, []byte) { return &(*r)[i].row, (*r)[i].value }

// damage changes the value of a row behind the checksum's back.
func damage(t *testing.T, f *File, id int64) {
	t.Helper()
	if err := f.writer.Exec(`UPDATE log SET value = 'damaged' WHERE id = ?`, id); err != nil {
		t.Fatal(err)
	}
}

// ReadAll finds what is there, and never gives a row the value of another.
func TestReadAllFindsRows(t *testing.T) {
	f, rows := written(t)
	var asked []*Row
	var want []int // into rows
	for i := range rows {
		if i%5 != 0 {
			asked = append(asked, &rows[i].row)
			want = append(want, i)
		}
	}
	gone := map[int]bool{0: true, 77: true, 1300: true, len(asked) - 1: true}
	for k := range gone {
		if err := f.writer.Exec(`DELETE FROM log WHERE id = ?`, asked[k].ID); err != nil {
			t.Fatal(err)
		}
	}
	var found []int
	read := func() error {
		found = nil
		return f.ReadAll(asked, func(k int, value []byte) {
			if !bytes.Equal(value, rows[want[k]].value) {
				t.Errorf("row %d has another value", k)
			}
			found = append(found, k)
		})
	}
	if err := read(); err != nil || len(found) != len(asked)-len(gone) || slices.ContainsFunc(found, func(k int) bool { return gone[k] }) {
		t.Errorf("%d of %d rows found, want all but %d (%v)", len(found), len(asked), len(gone), err)
	}
	damage(t, f, asked[1000].ID)
	if err := read(); !errors.Is(err, ErrCorrupt) || len(found) == 0 || found[len(found)-1] >= 1000 {
		t.Errorf("a damaged row: %v", err)
	}
}

// Rows with many others between them are left to Read, so that no statement goes through all of those.
func TestReadAllReadsFewRowsInVain(t *testing.T) {
	f, err := Open(filepath.Join(t.TempDir(), FileName), Options{Relaxed: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(false)
	var rows allRows // of two revisions
	for i := range 4000 {
		rows = append(rows, oneRow{Row{ID: RowID(2+int64(i)/2000, i%2000), Key: fmt.Sprint("/k/", i), Create: 2, Version: 1}, []byte("v")})
	}
	if err := f.Commit(Batch{Rows: &rows}); err != nil {
		t.Fatal(err)
	}
	found := 0
	if err := f.ReadAll([]*Row{&rows[0].row, &rows[3999].row}, func(int, []byte) { found++ }); err != nil || found != 1 {
		t.Errorf("%d rows found, want the first one alone (%v)", found, err)
	}
}
