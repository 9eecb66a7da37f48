package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/snapshot"
)

// whole is a backup of cluster with SSH keys and a configuration file.
func whole(t *testing.T) (file, config string) {
	t.Helper()
	dir, config := cluster(t), filepath.Join(t.TempDir(), "etc", "config.yaml")
	for path, text := range map[string]string{filepath.Join(dir, "ssh", "id"): "a key", config: "secure-port: 6443\n"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	file = filepath.Join(t.TempDir(), "whole.backup")
	source := snapshot.Source{DataDir: dir, StoreDir: dir, Files: []string{config, config + ".missing"}}
	if _, err := take(t, source, file); err != nil {
		t.Fatal(err)
	}
	return file, config
}

// restored restores a backup into a directory, and the user's files into etc in it.
func restored(ctx context.Context, file, dir string) error {
	_, err := snapshot.Restore(ctx, file, target(dir, dir), func(s *snapshot.Snapshot) error {
		_, _, err := s.PlaceFiles(func(path string) string { return filepath.Join(dir, "etc", filepath.Base(path)) })
		return err
	})
	return err
}

func wantRestored(t *testing.T, dir string) {
	t.Helper()
	wantCluster(t, dir, dir)
	for name, want := range map[string]string{"ssh/id": "a key", "etc/config.yaml": "secure-port: 6443\n"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(text) != want {
			t.Errorf("%s: got %q, %v; want %q", name, text, err, want)
		}
	}
	for _, name := range []string{snapshot.FileName, "fork-of", "fork-unfinished"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is left over", name)
		}
	}
}

func TestRestore(t *testing.T) {
	file, config := whole(t)
	dir := t.TempDir()
	if err := restored(t.Context(), file, dir); err != nil {
		t.Fatal(err)
	}
	wantRestored(t, dir)
	done, err := backup.Verify(t.Context(), sqlitefile.ClosedFile(filepath.Join(dir, datastore.EngineFile)), nil)
	if err != nil || !done.OK || done.Revision < 2+backup.RevisionMargin {
		t.Errorf("got %+v, %v; want a revision that no client has seen", done, err)
	}
	// A directory with a cluster stays as it is.
	before := listing(t, dir)
	if err := restored(t.Context(), file, dir); !errors.Is(err, snapshot.ErrOccupied) {
		t.Errorf("got %v, want %v", err, snapshot.ErrOccupied)
	}
	if after := listing(t, dir); after != before {
		t.Errorf("a refused restore left\n%s, before it was\n%s", after, before)
	}
	// So does a file of the user's.
	if err := os.WriteFile(config, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	err = snapshot.WithFile(file, func(s *snapshot.Snapshot) error {
		placed, kept, err := s.PlaceFiles(func(path string) string { return path })
		if len(placed) != 0 || len(kept) != 1 || kept[0] != config {
			t.Errorf("placed %q and kept %q, want %s kept", placed, kept, config)
		}
		return err
	})
	mine, _ := os.ReadFile(config)
	theirs, _ := os.ReadFile(config + snapshot.Beside)
	if err != nil || string(mine) != "mine" || string(theirs) != "secure-port: 6443\n" {
		t.Errorf("got %q and beside it %q, %v", mine, theirs, err)
	}
}

// A backup has the manifests, but no links and nothing hidden, and no restore replaces one.
func TestManifestsAreRestored(t *testing.T) {
	made, elsewhere := cluster(t), t.TempDir()
	for _, dir := range []string{filepath.Join(made, "manifests"), elsewhere} {
		for name, mode := range map[string]os.FileMode{"a.yaml": 0o640, "shop/deep/b.yaml": 0o600, "run": 0o755, ".git/config": 0o600, "large.yaml": 0o600} {
			path := filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(name), mode)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(os.Symlink("/etc/passwd", filepath.Join(dir, "link.yaml")), os.Symlink(made, filepath.Join(dir, "links")), os.Truncate(filepath.Join(dir, "large.yaml"), 17<<20)); err != nil {
			t.Skip(err)
		}
	}
	for _, source := range []snapshot.Source{{DataDir: made, StoreDir: made}, {DataDir: made, StoreDir: made, ManifestsDir: filepath.Join(made, "manifests")}, {DataDir: made, StoreDir: made, ManifestsDir: elsewhere}} {
		file, dir := filepath.Join(t.TempDir(), "a.backup"), t.TempDir()
		if _, err := take(t, source, file); err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, "manifests")
		if source.ManifestsDir == elsewhere {
			to = filepath.Join(dir, snapshot.Elsewhere, "manifests")
		}
		// A file that is another one stays, and nothing is made.
		if err := errors.Join(os.MkdirAll(to, 0o700), os.WriteFile(filepath.Join(to, "a.yaml"), []byte("mine"), 0o600)); err != nil {
			t.Fatal(err)
		}
		if err := restored(t.Context(), file, dir); !errors.Is(err, snapshot.ErrOccupied) || !strings.Contains(err.Error(), "a.yaml") {
			t.Errorf("beside another file: got %v, want %v", err, snapshot.ErrOccupied)
		}
		if _, err := os.Lstat(filepath.Join(dir, "fork-unfinished")); err == nil {
			t.Error("a refused restore has begun")
		}
		if err := os.Remove(filepath.Join(to, "a.yaml")); err != nil {
			t.Fatal(err)
		}
		if err := restored(t.Context(), file, dir); err != nil {
			t.Fatal(err)
		}
		got := ""
		err := filepath.WalkDir(to, func(path string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				info, _ := e.Info()
				text, _ := os.ReadFile(path)
				got += fmt.Sprintf("%s %v\n", text, info.Mode())
			}
			return err
		})
		if want := "a.yaml -rw-r-----\nrun -rwxr-xr-x\nshop/deep/b.yaml -rw-------\n"; err != nil || got != want {
			t.Errorf("got\n%s%v\nwant\n%s", got, err, want)
		}
		err = snapshot.WithFile(file, func(s *snapshot.Snapshot) error {
			if place, n := s.ManifestsIn(dir); place != to || n != 3 {
				t.Errorf("got %s, %d", place, n)
			}
			now := snapshot.Source{ManifestsDir: to}
			if !now.HasManifests(s) {
				t.Error("the restored files differ")
			}
			if err := os.WriteFile(filepath.Join(to, "a.yaml"), []byte("other"), 0o600); err != nil {
				return err
			}
			if now.HasManifests(s) {
				t.Error("a change is none")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A backup that is damaged where only reading all of it shows that leaves nothing behind, so the next restore takes another one.
func TestRestoreOfADamagedBackup(t *testing.T) {
	file, _ := whole(t)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Index(string(text), "/registry/a")
	changed := []byte(string(text))
	changed[at] ^= 1
	for name, damaged := range map[string][]byte{"changed": changed, "cut off": text[:at]} {
		dir, path := t.TempDir(), filepath.Join(t.TempDir(), "damaged")
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := restored(t.Context(), path, dir); !errors.Is(err, snapshot.ErrNone) {
			t.Errorf("%s: got %v, want %v", name, err, snapshot.ErrNone)
		}
		if left := listing(t, dir); left != "" {
			t.Errorf("%s: it left\n%s", name, left)
		}
		if err := restored(t.Context(), file, dir); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		wantRestored(t, dir)
	}
}

// A restore that is killed leaves a directory that no server starts with, and that the same command finishes.
func TestRestoreKilledAtEachCall(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed: no way to stop at a system call")
	}
	if out, err := exec.Command(strace, "-f", "-o", os.DevNull, "true").CombinedOutput(); err != nil {
		t.Skipf("strace may not trace here: %v: %s", err, out)
	}
	file, _ := whole(t)
	const calls = "write,pwrite64,copy_file_range,mkdirat,fsync,fdatasync,?rename,renameat,?renameat2,?linkat,?unlink,unlinkat"
	killed, unfinished, done := 0, 0, false
	for n := 1; !done && !t.Failed(); n++ {
		dir := t.TempDir()
		cmd := exec.Command(strace, "-f", "-qq", "-o", os.DevNull, "-e", "trace="+calls,
			"-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", calls, n), os.Args[0])
		cmd.Env = append(os.Environ(), restoreVariable+"="+file+":"+dir)
		out, _ := cmd.Output()
		if done = string(out) == "done <nil>"; done {
			break
		}
		killed++
		if err := snapshot.Unfinished(dir); err != nil {
			unfinished++
			if !strings.Contains(err.Error(), "karve backup restore "+file) {
				t.Errorf("killed at call %d: got %v, want the command that finishes it", n, err)
			}
			if _, err := snapshot.Fork(t.Context(), file, target(dir, dir)); err == nil {
				t.Errorf("killed at call %d: --fork-from took the half of a restore", n)
			}
		} else if _, err := os.Lstat(filepath.Join(dir, datastore.EngineFile)); err == nil { // it was complete
			wantRestored(t, dir)
			continue
		} else {
			for _, name := range []string{"certs", "etc/config.yaml"} {
				if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
					t.Errorf("killed at call %d: there is %s, and no mark", n, name)
				}
			}
		}
		if err := restored(t.Context(), file, dir); err != nil {
			t.Errorf("killed at call %d: the next restore: %v", n, err)
			continue
		}
		wantRestored(t, dir)
	}
	if killed < 15 || unfinished < 10 {
		t.Errorf("%d calls were killed, and %d left a mark: want at least 15 and 10", killed, unfinished)
	}
	t.Logf("killed at each of %d system calls", killed)
}

// Each byte of a backup counts.
func TestVerifyNoticesDamage(t *testing.T) {
	file, _ := whole(t)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	verify := func(text []byte) error {
		path := filepath.Join(t.TempDir(), "damaged")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return snapshot.WithFile(path, func(s *snapshot.Snapshot) error {
			_, err := s.Verify(t.Context(), t.TempDir())
			return err
		})
	}
	if err := verify(text); err != nil {
		t.Fatal(err)
	}
	for _, mark := range []string{`"revision":2`, "certificate", "accounts", "a key", "secure-port", "SQLite format 3", "/registry/a"} {
		at := strings.Index(string(text), mark)
		if at < 0 {
			t.Fatalf("there is no %q in it", mark)
		}
		damaged := []byte(string(text))
		damaged[at+len(mark)-1] ^= 1
		if err := verify(damaged); err == nil {
			t.Errorf("a changed %q was not noticed", mark)
		}
	}
	begin, end := strings.Index(string(text), "certs/service-account.key\x00"), strings.Index(string(text), "ssh/id\x00")
	if begin < 0 || end < begin {
		t.Fatalf("an entry is from %d to %d", begin, end)
	}
	if err := verify(append(text[:begin:begin], text[end:]...)); err == nil {
		t.Error("a missing key was not noticed")
	}
	for length := 0; length < len(text)-1024; length += len(text) / 50 { // tar ends with empty blocks
		if err := verify(text[:length]); err == nil {
			t.Errorf("a backup of %d bytes, cut to %d, was not noticed", len(text), length)
		}
	}
}

// A new backup is whole: neither the copy of the database nor the file may be damaged while it is made.
func TestMakeVerifiedNoticesDamage(t *testing.T) {
	damage := func(file string) error {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		text[strings.Index(string(text), "/registry/a")] ^= 1
		return os.WriteFile(file, text, 0o600)
	}
	dir := cluster(t)
	for _, damaged := range []string{"nothing", "the copy", "the file"} {
		source := snapshot.Source{DataDir: dir, Backup: func(ctx context.Context, to string) (*backup.Result, error) {
			made, err := backup.Write(ctx, sqlitefile.ClosedFile(filepath.Join(dir, datastore.EngineFile)), to)
			if damaged == "the copy" {
				err = errors.Join(err, damage(to))
			}
			return made, err
		}}
		temp, err := directory.NewTempDir(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer temp.Remove()
		info, err := snapshot.MakeVerified(t.Context(), temp, func(w io.Writer, scratch string) error {
			_, err := snapshot.Write(t.Context(), source, scratch, w)
			if damaged == "the file" {
				err = errors.Join(err, damage(temp.File()))
			}
			return err
		})
		if (err != nil) != (damaged != "nothing") || err == nil && info.Revision != 2 {
			t.Errorf("%s is damaged: got %+v, %v", damaged, info, err)
		}
	}
}
