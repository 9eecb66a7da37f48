package directory

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/karve-k8s/karve/internal/shell"
)

// ErrNoSpace is the error for a write that was not done because the disk is full. Reads,
// watches, deletes and compaction still work. Puts work again by themselves once the disk has
// space.
var ErrNoSpace = errors.New("no space left for the datastore")

// IsFull reports whether err says that a disk is full, that a quota is used up, or that a file would be larger
// than this process may write.
func IsFull(err error) bool {
	return errors.Is(err, ErrNoSpace) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}

// ReadOnly returns an error for a data directory that cannot be written because its file system is read-only.
func ReadOnly(dir string) error {
	return fmt.Errorf("%s: %w, as a failing card becomes: no server can run there, but the cluster is still in it, and karve backup create --data-dir %[3]s FILE saves it to a FILE on another disk",
		dir, syscall.EROFS, shell.Quoted(dir))
}

// NoSpace returns [ErrNoSpace] with the directory, the cause and the remedy.
func (b *Ballast) NoSpace() error {
	return noSpace(filepath.Dir(b.path), b.quota.Load(), b.size > 0, b.needs)
}

// NoSpaceIn returns [ErrNoSpace] for a directory in which a write failed with cause.
func NoSpaceIn(dir string, cause error) error {
	return noSpace(dir, errors.Is(cause, syscall.EDQUOT), false, nil)
}

// noSpace describes a lack of space. Where known is true, needs returns how much space writes
// need.
func noSpace(dir string, quota, known bool, needs func() int64) error {
	var why []string
	if quota {
		why = append(why, "a disk quota is used up")
	}
	remedy := "free some space there, or delete objects; writes then work again by themselves"
	free, measured := FreeBytes(dir)
	if measured {
		why = append(why, fmt.Sprintf("%.1f MiB free on its file system", float64(free)/(1<<20)))
	}
	need := int64(ballastMargin)
	if known {
		need = needs()
	}
	switch enough := measured && free >= need && !quota; {
	case enough:
		remedy = "try again in a moment; if that does not help, raise this process' limit of file sizes (ulimit -f, LimitFSIZE= of a systemd unit)"
	case known:
		why = append(why, fmt.Sprintf("writes need %.1f MiB", float64(need)/(1<<20)))
	}
	return fmt.Errorf("%w in %s (%s): %s", ErrNoSpace, dir, strings.Join(why, ", "), remedy)
}
