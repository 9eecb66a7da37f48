package directory

import (
	"errors"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A limit of file sizes refuses writes as a full disk does, and the error says what it is.
func TestLimitOfFileSizes(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	limited := before
	limited.Cur = 1 << 20
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limited); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_FSIZE, &before)
	path := filepath.Join(t.TempDir(), "mvcc.db")
	b := NewBallast(path, 2<<20, nil)
	b.Open()
	for name, err := range map[string]error{
		"the ballast":            b.NoSpace(),
		"a write":                NoSpaceIn(filepath.Dir(path), syscall.EFBIG),
		"a write, short by some": NoSpaceIn(filepath.Dir(path), io.ErrShortWrite),
	} {
		if !errors.Is(err, ErrNoSpace) || !strings.Contains(err.Error(), "limit of file sizes") || !strings.Contains(err.Error(), "ulimit -f") {
			t.Errorf("%s: got %v, want the limit and the remedy", name, err)
		}
	}
	if !b.Released() || !IsFull(syscall.EFBIG) {
		t.Error("a file that would be too large does not count as a full disk")
	}
}
