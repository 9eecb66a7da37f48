package directory

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
)

// ErrNoSpace: the write was not done because the disk is full. Reads,
// watches, deletes and compaction go on; puts work again by themselves
// once there is room.
var ErrNoSpace = errors.New("no space left for the datastore")

// IsFull tells whether something could not be written because a disk is full or a quota is
// used up.
func IsFull(err error) bool {
	return errors.Is(err, ErrNoSpace) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// NoSpace is [ErrNoSpace] with where, why, and what to do about it.
func (b *Ballast) NoSpace() error {
	return noSpace(filepath.Dir(b.path), b.quota.Load(), b.size > 0, b.needs)
}

// NoSpaceIn is [ErrNoSpace] for a directory in which cause shows that there is none.
func NoSpaceIn(dir string, cause error) error {
	return noSpace(dir, errors.Is(cause, syscall.EDQUOT), false, nil)
}

// noSpace explains why there is no space; needs is how much writes need, where that is known.
func noSpace(dir string, quota, known bool, needs func() int64) error {
	var why []string
	if quota {
		why = append(why, "a disk quota is used up")
	}
	do := "make room there, or delete objects; writes then work again by themselves"
	free, measured := freeBytes(dir)
	if measured {
		why = append(why, fmt.Sprintf("%.1f MiB free on its file system", float64(free)/(1<<20)))
	}
	if known {
		if need := needs(); measured && free >= need && !quota {
			do = "try again in a moment"
		} else {
			why = append(why, fmt.Sprintf("writes need %.1f MiB", float64(need)/(1<<20)))
		}
	}
	return fmt.Errorf("%w in %s (%s): %s", ErrNoSpace, dir, strings.Join(why, ", "), do)
}
