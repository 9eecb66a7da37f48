package datastore

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sent makes an engine with history and leases, and answers what it sends as a backup.
func sent(t *testing.T) (*Engine, []byte) {
	t.Helper()
	e := openTest(t, "", Options{CacheBytes: 1})
	lease, err := e.Grant(t.Context(), 7, 3600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Put(t.Context(), PutRequest{Key: "/leased", Lease: lease.ID}); err != nil {
		t.Fatal(err)
	}
	for i := range 400 {
		put(t, e, fmt.Sprint("/k/", i%50), strings.Repeat(fmt.Sprint(i), 1000))
	}
	if _, err := e.Delete(t.Context(), DeleteRequest{Key: "/k/7"}); err != nil {
		t.Fatal(err)
	}
	if err := e.Compact(t.Context(), 100, true); err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	if err := e.SendBackup(t.Context(), &stream); err != nil {
		t.Fatal(err)
	}
	return e, stream.Bytes()
}

// A backup that is received is the one that the engine would write.
func TestSentBackup(t *testing.T) {
	e, stream := sent(t)
	dir := t.TempDir()
	received, written := filepath.Join(dir, "received"), filepath.Join(dir, "written")
	c, err := ReceiveBackup(t.Context(), bytes.NewReader(stream), e.Path(), received, BackupOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want, err := e.Backup(t.Context(), written, BackupOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if c.Revision != want.Revision || c.Keys != want.Keys || c.From != e.Path() || c.Bytes == 0 {
		t.Errorf("got %+v, want the figures of %+v", c, want)
	}
	if info, err := os.Stat(received); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want mode 600", info, err)
	}
	if a, b := rowsOf(t, received), rowsOf(t, written); a != b {
		t.Errorf("the rows differ:\n%.500s\n%.500s", a, b)
	}
	if _, err := ReceiveBackup(t.Context(), bytes.NewReader(stream), e.Path(), received, BackupOptions{}); !errors.Is(err, ErrExists) {
		t.Errorf("a second time: %v, want ErrExists", err)
	}
}

// rowsOf is all that is in a database, but for how it was closed.
func rowsOf(t *testing.T, path string) string {
	t.Helper()
	var out strings.Builder
	err := viewEngine(path, func(c *connection) error {
		for _, query := range []string{"SELECT * FROM meta ORDER BY name", "SELECT * FROM lease ORDER BY id",
			"SELECT id, CAST(key AS TEXT), flags, create_revision, version, lease, crc, length(value) FROM log ORDER BY id"} {
			err := c.query(query, func(row []driver.Value) error {
				fmt.Fprintln(&out, fmt.Sprint(row))
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// A stream that is cut off anywhere, or changed, gives no backup.
func TestBackupThatIsCutOff(t *testing.T) {
	e, stream := sent(t)
	receive := func(b []byte) error {
		dir := t.TempDir()
		_, err := ReceiveBackup(t.Context(), bytes.NewReader(b), e.Path(), filepath.Join(dir, "b"), BackupOptions{})
		if left := glob(t, dir, "*"); err != nil && len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
		return err
	}
	for _, length := range []int{0, 1, len(stream) / 3, len(stream) - 1} {
		if err := receive(stream[:length]); !errors.Is(err, ErrIncomplete) {
			t.Errorf("%d bytes of %d: got %v, want %v", length, len(stream), err, ErrIncomplete)
		}
	}
	changed := bytes.Clone(stream)
	changed[bytes.Index(changed, []byte("399399399"))] = '8'
	if err := receive(changed); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "revision") {
		t.Errorf("a changed value: got %v, want %v, which names the row", err, ErrCorrupt)
	}
	if err := receive(stream); err != nil {
		t.Error(err)
	}
}

// An engine that is closed while it sends a backup ends it, and the receiver knows.
func TestCloseEndsBackups(t *testing.T) {
	e, _ := sent(t)
	r, w := io.Pipe()
	answer := make(chan error, 1)
	go func() {
		answer <- e.SendBackup(context.Background(), w)
		w.Close()
	}()
	first := make([]byte, 1)
	if _, err := r.Read(first); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- e.Close() }()
	<-e.disk.closed.Done()
	_, err := ReceiveBackup(t.Context(), io.MultiReader(bytes.NewReader(first), r), e.Path(), filepath.Join(t.TempDir(), "b"), BackupOptions{})
	if err == nil || !strings.Contains(err.Error(), ErrClosed.Error()) {
		t.Errorf("received: %v, want that the datastore is closed", err)
	}
	if err := <-answer; !errors.Is(err, ErrClosed) {
		t.Errorf("sent: %v, want %v", err, ErrClosed)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if v, err := Verify(t.Context(), e.Path(), nil); err != nil || !v.OK {
		t.Errorf("%+v, %v", v, err)
	}
	if err := e.SendBackup(t.Context(), io.Discard); !errors.Is(err, ErrClosed) {
		t.Errorf("after the close: %v, want %v", err, ErrClosed)
	}
}
