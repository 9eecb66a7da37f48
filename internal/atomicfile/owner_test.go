package atomicfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestRootKeepsTheOwnerOfAFile(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 1234, 2345); err != nil {
		t.Fatal(err)
	}
	like, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, owner := range []fs.FileInfo{like, nil} {
		if err := (Writer{}).Write(File{Path: path, Mode: 0o600, Owner: owner}); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		want := [2]uint32{}
		if owner != nil {
			want = [2]uint32{1234, 2345}
		}
		if st := info.Sys().(*syscall.Stat_t); [2]uint32{st.Uid, st.Gid} != want {
			t.Errorf("owner %d:%d, want %v", st.Uid, st.Gid, want)
		}
	}
}

// A tmpfs and every disk of a test machine can sync directories; that others cannot is seen
// by their errors only.
func TestOnlyFileSystemsThatCannotSyncAreExcused(t *testing.T) {
	for err, want := range map[error]bool{syscall.EINVAL: true, syscall.ENOTSUP: true, syscall.EIO: false, syscall.ENOSPC: false, syscall.EROFS: false} {
		if got := unsyncable(&fs.PathError{Op: "sync", Path: "/", Err: err}); got != want {
			t.Errorf("%v: excused %v, want %v", err, got, want)
		}
	}
}

// No timing: a reader opens the file all the time, and never sees a part of it.
func TestReadersSeeWholeFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	contents := [2][]byte{make([]byte, 1<<16), make([]byte, 1<<17)}
	if err := (Writer{NoSync: true}).Write(File{Path: path, Data: contents[0], Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		var err error
		for i := 0; i < 200 && err == nil; i++ {
			err = Writer{NoSync: true}.Write(File{Path: path, Data: contents[i%2], Mode: 0o600})
		}
		done <- err
	}()
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
		if got, err := os.ReadFile(path); err != nil || len(got) != 1<<16 && len(got) != 1<<17 {
			t.Fatalf("read %d bytes, %v", len(got), err)
		}
	}
}
