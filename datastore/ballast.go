package datastore

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// ballast is a file that takes up room for an emergency. When the disk is full it
// is removed: deletes and compaction then have space, and puts are refused until
// it could be made again, which proves that there is room for them too.
type ballast struct {
	path string
	size int64

	released atomic.Bool // the disk is full, or was when somebody last looked
	mu       sync.Mutex
	tried    time.Time // last attempt to make it again
}

// open makes the ballast. A disk that has no room for it counts as full.
func (b *ballast) open() {
	if b.released.Load() {
		return // it was needed to start: the first put looks again
	}
	if b.make() != nil {
		b.release()
	}
}

func (b *ballast) exists() bool {
	_, err := os.Stat(b.path)
	return err == nil
}

// make writes the file, with its blocks: a sparse one would hold no room.
func (b *ballast) make() error {
	if b.size <= 0 {
		return nil
	}
	if info, err := os.Stat(b.path); err == nil && info.Size() == b.size {
		return nil
	}
	f, err := os.OpenFile(b.path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	// Not zeros: some file systems store those as holes.
	block := make([]byte, 64<<10)
	for i := range block {
		block[i] = byte(i*7 + 1)
	}
	for left := b.size; left > 0 && err == nil; left -= int64(len(block)) {
		_, err = f.Write(block[:min(left, int64(len(block)))])
	}
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		os.Remove(b.path)
	}
	return err
}

// release gives the room away.
func (b *ballast) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tried = time.Now()
	b.released.Store(true)
	if b.path != "" {
		os.Remove(b.path)
	}
}

// ballastRetry is how often a full disk is looked at, and only when somebody
// wants to put something: there is no timer.
const ballastRetry = 500 * time.Millisecond

// regained looks whether the disk has room again.
func (b *ballast) regained() bool {
	if !b.released.Load() {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.released.Load() {
		return true
	}
	if time.Since(b.tried) < ballastRetry {
		return false
	}
	b.tried = time.Now()
	if b.make() != nil {
		return false
	}
	b.released.Store(false)
	return true
}

// roomForPuts refuses what needs space while the disk is full.
func (e *Engine) roomForPuts() error {
	if e.ballast.regained() {
		return nil
	}
	return fmt.Errorf("%w: %s (free some, or delete and compact)", ErrNoSpace, e.path)
}
