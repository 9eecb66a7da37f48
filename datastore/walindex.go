package datastore

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// SQLite keeps an index of its log beside it, in the file -shm: 32 KiB for about
// every 4,096 frames (https://sqlite.org/walformat.html). Where the disk has no room
// for the next 32 KiB, its error is that of a broken disk, in the middle of a
// transaction. So the room is taken beforehand, where the answer is clear.
const (
	indexRegion = 32 << 10
	indexFrames = 4096
	indexHeader = 34  // what the first region has less, in frames
	indexSpare  = 256 // for pages that SQLite writes to the log twice
)

// reserveIndex makes room in the log's index for pages more. Without room the
// error is [ErrNoSpace] and nothing has happened. Where it cannot be reserved for
// another reason, SQLite makes it when it needs it. The caller writes at most that
// many pages to the log next.
func (d *disk) reserveIndex(pages int64) error {
	d.frames += pages
	regions := (d.frames + indexSpare + indexHeader + indexFrames - 1) / indexFrames
	if regions*indexRegion <= d.indexed {
		return nil
	}
	if d.index == nil {
		// Open until the engine's connections are closed: closing a descriptor of
		// our own drops SQLite's locks, all that this process has on the file
		// (https://sqlite.org/howtocorrupt.html#posixlocks).
		f, err := os.OpenFile(d.path+"-shm", os.O_RDWR, 0)
		if err != nil {
			return nil // too many files are open, for now
		}
		d.index = f
	}
	err := allocate(d.index, regions*indexRegion)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		d.frames -= pages
		return fmt.Errorf("%w: %s-shm", ErrNoSpace, d.path)
	}
	if err == nil {
		d.indexed = regions * indexRegion
	}
	return nil
}
