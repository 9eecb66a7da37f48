package backup_test

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

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/enginetest"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// sent makes an engine with history and leases, and answers what it sends as a backup.
func sent(t *testing.T) (*datastore.Engine, []byte) {
	t.Helper()
	e := enginetest.Open(t, "", datastore.Options{CacheBytes: 1})
	lease, err := e.Grant(t.Context(), 7, 3600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Put(t.Context(), datastore.PutRequest{Key: "/leased", Lease: lease.ID}); err != nil {
		t.Fatal(err)
	}
	for i := range 400 {
		enginetest.Put(t, e, fmt.Sprint("/k/", i%50), strings.Repeat(fmt.Sprint(i), 1000))
	}
	if _, err := e.Delete(t.Context(), datastore.DeleteRequest{Key: "/k/7"}); err != nil {
		t.Fatal(err)
	}
	if err := e.Compact(t.Context(), 100, true); err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	if err := backup.Send(t.Context(), e.Source(), &stream); err != nil {
		t.Fatal(err)
	}
	return e, stream.Bytes()
}

// A backup that is received is the one that the engine would write.
func TestSentBackup(t *testing.T) {
	e, stream := sent(t)
	dir := t.TempDir()
	received, written := filepath.Join(dir, "received"), filepath.Join(dir, "written")
	c, err := backup.Receive(t.Context(), bytes.NewReader(stream), e.Path(), received, backup.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want, err := e.Backup(t.Context(), written, backup.Options{})
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
	if _, err := backup.Receive(t.Context(), bytes.NewReader(stream), e.Path(), received, backup.Options{}); !errors.Is(err, backup.ErrExists) {
		t.Errorf("a second time: %v, want ErrExists", err)
	}
}

// rowsOf is all that is in a database, but for its own number.
func rowsOf(t *testing.T, path string) string {
	t.Helper()
	var out strings.Builder
	err := sqlitefile.View(path, func(c *sqlitefile.Connection) error {
		for _, query := range []string{"SELECT * FROM meta WHERE name <> 'run' ORDER BY name", "SELECT * FROM lease ORDER BY id",
			"SELECT id, CAST(key AS TEXT), flags, create_revision, version, lease, crc, length(value) FROM log ORDER BY id"} {
			err := c.Query(query, func(row []driver.Value) error {
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
		_, err := backup.Receive(t.Context(), bytes.NewReader(b), e.Path(), filepath.Join(dir, "b"), backup.Options{})
		if left := enginetest.Glob(t, dir, "*"); err != nil && len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
		return err
	}
	for _, length := range []int{0, 1, len(stream) / 3, len(stream) - 1} {
		if err := receive(stream[:length]); !errors.Is(err, backup.ErrIncomplete) {
			t.Errorf("%d bytes of %d: got %v, want %v", length, len(stream), err, backup.ErrIncomplete)
		}
	}
	changed := bytes.Clone(stream)
	changed[bytes.Index(changed, []byte("399399399"))] = '8'
	if err := receive(changed); !errors.Is(err, sqlitefile.ErrCorrupt) || !strings.Contains(err.Error(), "revision") {
		t.Errorf("a changed value: got %v, want %v, which names the row", err, sqlitefile.ErrCorrupt)
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
		answer <- backup.Send(context.Background(), e.Source(), w)
		w.Close()
	}()
	first := make([]byte, 1)
	if _, err := r.Read(first); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- e.Close() }()
	for { // until Close has begun to end what reads the file
		if err := e.Source().View(t.Context(), func(context.Context, *sqlitefile.Connection) error { return nil }); errors.Is(err, datastore.ErrClosed) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	_, err := backup.Receive(t.Context(), io.MultiReader(bytes.NewReader(first), r), e.Path(), filepath.Join(t.TempDir(), "b"), backup.Options{})
	if err == nil || !strings.Contains(err.Error(), sqlitefile.ErrClosed.Error()) {
		t.Errorf("received: %v, want that the datastore is closed", err)
	}
	if err := <-answer; !errors.Is(err, sqlitefile.ErrClosed) {
		t.Errorf("sent: %v, want %v", err, sqlitefile.ErrClosed)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if v, err := backup.Verify(t.Context(), sqlitefile.ClosedFile(e.Path()), nil); err != nil || !v.OK {
		t.Errorf("%+v, %v", v, err)
	}
	if err := backup.Send(t.Context(), e.Source(), io.Discard); !errors.Is(err, sqlitefile.ErrClosed) {
		t.Errorf("after the close: %v, want %v", err, sqlitefile.ErrClosed)
	}
}
