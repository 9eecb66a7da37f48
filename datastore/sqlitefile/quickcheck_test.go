package sqlitefile

import (
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"modernc.org/sqlite/vfs"
)

// slowFS counts the reads of its files. From the read number slowFrom on, each read calls
// begun and takes a millisecond.
type slowFS struct {
	fs.FS
	reads    atomic.Int64
	slowFrom int64
	begun    func()
}

type slowFile struct {
	*os.File
	fs *slowFS
}

func (s *slowFS) Open(name string) (fs.File, error) {
	f, err := s.FS.Open(name)
	if err != nil {
		return nil, err
	}
	return &slowFile{f.(*os.File), s}, nil
}

func (f *slowFile) Read(b []byte) (int, error) {
	if n := f.fs.reads.Add(1); f.fs.slowFrom > 0 && n >= f.fs.slowFrom {
		f.fs.begun()
		time.Sleep(time.Millisecond) // for the driver to interrupt the statement
	}
	return f.File.Read(b)
}

// SQLite's own check of a large file ends soon after its context: it must not delay a stop.
func TestQuickCheckEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	b, err := NewBuilder(filepath.Join(dir, FileName))
	if err != nil {
		t.Fatal(err)
	}
	const rows = 2000 // of a page each
	for i := range int64(rows) {
		if err := b.Add(&Row{ID: RowID(i+2, 0), Key: "/k", Create: i + 2, Version: 1}, make([]byte, 4000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Finish(nil); err != nil {
		t.Fatal(err)
	}
	check := func(ctx context.Context, slow *slowFS) ([]string, error) {
		slow.FS = os.DirFS(dir)
		name, registered, err := vfs.New(slow)
		if err != nil {
			t.Fatal(err)
		}
		defer registered.Close()
		// The file system of Go knows no absolute paths, so this is not Connect.
		c, err := connectTo("file:"+FileName+"?"+url.Values{"vfs": {name}, "mode": {"ro"}, "immutable": {"1"}}.Encode(), FileName)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.QuickCheck(ctx, 1)
	}
	whole := &slowFS{}
	if problems, err := check(t.Context(), whole); err != nil || len(problems) > 0 || whole.reads.Load() < rows {
		t.Fatalf("a whole check: %v, %v, %d reads; want %d reads at least", problems, err, whole.reads.Load(), rows)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	slow := &slowFS{slowFrom: whole.reads.Load() / 10, begun: cancel}
	if _, err := check(ctx, slow); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if got := slow.reads.Load(); got > whole.reads.Load()/2 {
		t.Errorf("%d reads of %d: the check was not interrupted", got, whole.reads.Load())
	}
}
