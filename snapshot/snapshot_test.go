package snapshot_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/snapshot"
)

// cluster is the part of a data directory that snapshots contain.
func cluster(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	certs := filepath.Join(dir, "certs")
	if err := os.Mkdir(certs, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"ca.crt": "certificate", "ca.key": "key", "service-account.key": "accounts", ".karve-1.tmp": "unfinished"} {
		if err := os.WriteFile(filepath.Join(certs, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("ca.crt", filepath.Join(certs, "link.crt")); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "/registry/a", "1")
	return dir
}

// put writes a key into a datastore that nothing has open.
func put(t *testing.T, dir, key, value string) {
	t.Helper()
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	e, err := datastore.OpenEngine(lock, datastore.Options{BallastBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Put(t.Context(), datastore.PutRequest{Key: key, Value: []byte(value)}); err != nil {
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// take makes a snapshot in a file.
func take(t *testing.T, from snapshot.Source, file string) (info *snapshot.Info, err error) {
	t.Helper()
	err = snapshot.Place(file, false, func(w io.Writer, scratch string) (err error) {
		info, err = snapshot.Write(t.Context(), from, scratch, w)
		return err
	})
	return info, err
}

func made(t *testing.T, dir string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	info, err := take(t, snapshot.Source{DataDir: dir, StoreDir: dir}, file)
	if err != nil {
		t.Fatal(err)
	}
	if info.Keys != 1 || info.Revision != 2 {
		t.Errorf("%+v: want 1 key at revision 2", info)
	}
	return file
}

// wantCluster checks that a data directory is what cluster made.
func wantCluster(t *testing.T, dir, storeDir string) {
	t.Helper()
	c, err := datastore.ReadDump(t.Context(), filepath.Join(storeDir, datastore.EngineFile))
	if err != nil {
		t.Fatal(err)
	}
	c.Each(func(key string, value []byte) bool {
		if key != "/registry/a" || string(value) != "1" {
			t.Errorf("%s is %s", key, value)
		}
		return true
	})
	if c.Keys() != 1 {
		t.Errorf("%d keys, want 1", c.Keys())
	}
	var got []string
	entries, err := os.ReadDir(filepath.Join(dir, "certs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, "certs", e.Name()))
		info, statErr := e.Info()
		if err != nil || statErr != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v %v", e.Name(), info.Mode(), err, statErr)
		}
		got = append(got, e.Name()+" "+string(text))
	}
	want := []string{"ca.crt certificate", "ca.key key", "service-account.key accounts"}
	want = slices.Insert(want, 2, "link.crt certificate")
	if !slices.Equal(got, want) {
		t.Errorf("certificates %q, want %q", got, want)
	}
	if err := snapshot.Unfinished(dir); err != nil {
		t.Error(err)
	}
}

// wantFork is wantCluster for a fork, which keeps its snapshot.
func wantFork(t *testing.T, dir, storeDir string) {
	t.Helper()
	wantCluster(t, dir, storeDir)
	if err := snapshot.WithFile(filepath.Join(dir, snapshot.FileName), func(*snapshot.Snapshot) error { return nil }); err != nil {
		t.Error(err)
	}
}

func TestFork(t *testing.T) {
	source := cluster(t)
	file := made(t, source)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v: want mode 0600, as secrets are in it", info.Mode(), err)
	}
	before := listing(t, source)
	for name, from := range map[string]string{"file": file, "directory": source} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if _, err := snapshot.Fork(t.Context(), from, target(dir, dir)); err != nil {
				t.Fatal(err)
			}
			wantFork(t, dir, dir)
			before := listing(t, dir)
			if again, err := snapshot.Fork(t.Context(), from, target(dir, dir)); err != nil || !again.Already || again.Source != from {
				t.Errorf("again: %+v, %v; want that it is a fork already", again, err)
			}
			if after := listing(t, dir); after != before {
				t.Errorf("the second time left\n%s, before it was\n%s", after, before)
			}
		})
	}
	t.Run("store elsewhere", func(t *testing.T) {
		dir, store := t.TempDir(), t.TempDir()
		if _, err := snapshot.Fork(t.Context(), file, target(dir, store)); err != nil {
			t.Fatal(err)
		}
		wantFork(t, dir, store)
	})
	t.Run("into itself", func(t *testing.T) {
		if _, err := snapshot.Fork(t.Context(), source, target(source, source)); err == nil || !strings.Contains(err.Error(), "itself") {
			t.Errorf("%v, want that it is the directory itself", err)
		}
	})
	if after := listing(t, source); after != before {
		t.Errorf("a fork left in its source\n%s, before it was\n%s", after, before)
	}
	if _, err := take(t, snapshot.Source{DataDir: source, StoreDir: source}, file); !errors.Is(err, snapshot.ErrExists) {
		t.Errorf("over a file: %v, want %v", err, snapshot.ErrExists)
	}
}

// listing returns every file below a directory, with its size.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			info, err := e.Info()
			if err != nil {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, "%s %d %v %x\n", path, info.Size(), info.Mode(), sha256.Sum256(text))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// archive returns a tar file of pairs of name and content.
func archive(t testing.TB, entries ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(entries); i += 2 {
		if err := w.WriteHeader(&tar.Header{Name: entries[i], Size: int64(len(entries[i+1])), Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, entries[i+1])
	}
	w.Close()
	return b.Bytes()
}

func TestWhatIsNoSnapshot(t *testing.T) {
	const info = "karve-snapshot.json"
	for name, test := range map[string]struct {
		text []byte
		want error
	}{
		"nothing":          {nil, snapshot.ErrNone},
		"text":             {[]byte(strings.Repeat("hello\n", 500)), snapshot.ErrNone},
		"another archive":  {archive(t, "README", "hello"), snapshot.ErrNone},
		"no database":      {archive(t, info, `{"format":1}`, "certs/ca.crt", "x"), snapshot.ErrNone},
		"out of certs":     {archive(t, info, `{"format":1}`, "certs/../../x", "x", "mvcc.db", "x"), snapshot.ErrNone},
		"absolute":         {archive(t, info, `{"format":1}`, "/etc/passwd", "x", "mvcc.db", "x"), snapshot.ErrNone},
		"below certs":      {archive(t, info, `{"format":1}`, "certs/a/b", "x", "mvcc.db", "x"), snapshot.ErrNone},
		"a newer format":   {archive(t, info, `{"format":3}`, "mvcc.db", "x"), snapshot.ErrNewer},
		"wrong first file": {archive(t, "mvcc.db", "x"), snapshot.ErrNone},
	} {
		if _, err := snapshot.Read(bytes.NewReader(test.text)); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(archive(f, "karve-snapshot.json", `{"format":1}`, "certs/ca.crt", "x", "mvcc.db", "database"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := snapshot.Read(bytes.NewReader(text))
		if err != nil {
			return
		}
		dir := t.TempDir()
		_ = s.CopyDatabase(filepath.Join(dir, "db"))
	})
}
