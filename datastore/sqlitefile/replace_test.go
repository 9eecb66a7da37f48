package sqlitefile

import (
	"bytes"
	"path/filepath"
	"testing"
)

// A commit with a row that takes the place of the newest one writes only their page, as long as SQLite does
// not merge that with others because it is less than a third full.
func TestReplacedRowsTakeNoPages(t *testing.T) {
	for _, others := range []int{1400, 1700, 2000, 2300} {
		f, err := Open(filepath.Join(t.TempDir(), FileName), Options{Relaxed: true})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close(false)
		commit := func(revision int64, size int, replaced ...int64) {
			t.Helper()
			r := oneRow{Row{ID: RowID(revision, 0), Key: "/k", Create: 2, Version: revision - 1}, bytes.Repeat([]byte("x"), size)}
			if err := f.Commit(Batch{Rows: &r, Delete: replaced}); err != nil {
				t.Fatal(err)
			}
		}
		frames := func() int64 {
			t.Helper()
			if err := f.measureWAL(); err != nil {
				t.Fatal(err)
			}
			return f.wal / (pageSize + 24)
		}
		for n := range int64(40) { // so that the tree has two levels
			commit(2+n, 1000)
		}
		commit(50, others)
		commit(100, 500)
		before := frames()
		const commits = 100
		for n := range int64(commits) {
			commit(101+n, 500, RowID(100+n, 0))
		}
		if got := frames() - before; got > commits*11/10 {
			t.Errorf("beside a row of %d bytes, %d commits write %d pages, want one each", others, commits, got)
		}
		rows := int64(0)
		if err := f.Load(func(Row, []byte) error { rows++; return nil }); err != nil || rows != 42 {
			t.Errorf("%d rows, want 42 (%v)", rows, err)
		}
	}
}

// The figures that a stop in order leaves are those of the rows that are there.
func TestReplacedRowsAreAccountedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	f, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for n := range int64(10) {
		r := oneRow{Row{ID: RowID(2+n, 0), Key: "/k", Create: 2, Version: n + 1}, []byte("x")}
		b := Batch{Rows: &r}
		if n > 0 {
			b.Delete = []int64{RowID(1+n, 0)}
		}
		if err := f.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	if f.rows != 1 {
		t.Errorf("%d rows are counted, want 1", f.rows)
	}
	if err := f.CloseInOrder(nil, nil); err != nil {
		t.Fatal(err)
	}
	if f, err = Open(path, Options{}); err != nil {
		t.Fatal(err)
	}
	defer f.Close(false)
	metas, err := f.Metas()
	if err == nil {
		err = f.Load(func(Row, []byte) error { return nil })
	}
	if err == nil {
		err = f.CheckRows(metas)
	}
	if err != nil {
		t.Error(err)
	}
}
