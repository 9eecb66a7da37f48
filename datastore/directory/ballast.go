package directory

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Ballast is two files that reserve space for an emergency. When the disk is full, the large
// one is removed: deletes and compaction then have space. Puts are refused until the large
// file can be made again, which proves that there is space for them too. The small file stays,
// however full the disk gets; a start that has no space for its own files removes it.
type Ballast struct {
	path string
	size int64       // of the large file; the small one has a quarter of it
	told func(error) // called with an error when puts begin to be refused, with nil when they work again; may be nil

	released atomic.Bool // the disk is full, or was at the last attempt
	quota    atomic.Bool // a quota is used up, which does not show in the free space
	mu       sync.Mutex
	tried    time.Time // last attempt to make the large file again
	gone     bool      // the small file was removed too, as the last resort
}

// NewBallast returns the ballast of a database and makes no file yet. size is the size of the
// large file, which is four times as large where the file system copies what is overwritten; 0 or less is no
// ballast. told, if not nil, is called with an error when puts begin to be refused, and with nil when they
// work again.
func NewBallast(database string, size int64, told func(error)) *Ballast {
	if copiesOnWrite(filepath.Dir(database)) {
		size *= copiedShare
	}
	return &Ballast{path: database + ".ballast", size: size, told: told}
}

// copiedShare is how much more ballast a file system needs that copies on write. It keeps an extent until all
// of it is overwritten. The extents of the database are as long as what one checkpoint has appended, and
// housekeeping moves single pages from the last extents to the first, so several are held in part before one
// is free.
const copiedShare = 4

// ballastMargin is how much has to be free beside the ballast: for the WAL and the files of a
// start, such as the administrator's kubeconfig.
const ballastMargin = 1 << 20

// Open makes the ballast. A disk that has no space for it counts as full.
func (b *Ballast) Open() {
	if b.released.Load() {
		return // the start needed it; the first put tries to make it again
	}
	err := b.make()
	if IsFull(err) {
		settleDeletions(filepath.Dir(b.path)) // files may have been removed just before this start
		err = b.make()
	}
	if err != nil {
		b.Release(err)
	}
}

func (b *Ballast) small() string { return b.path + ".start" }

func present(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// needs returns how much has to be free to make the missing files, with a margin.
func (b *Ballast) needs() int64 {
	n := int64(ballastMargin)
	if !present(b.path) {
		n += b.size
	}
	if !present(b.small()) {
		n += b.size / 4
	}
	return n
}

// make writes the files.
func (b *Ballast) make() error {
	if b.size <= 0 {
		return nil
	}
	if free, known := FreeBytes(filepath.Dir(b.path)); known && free < b.needs() && b.needs() > ballastMargin {
		return syscall.ENOSPC // filling the disk, even for a moment, could make other programs fail
	}
	if !b.gone {
		if err := makeBallast(b.small(), b.size/4); err != nil {
			return err
		}
		return makeBallast(b.path, b.size)
	}
	// The large one first: until there is space for both, housekeeping needs what little is free.
	if err := makeBallast(b.path, b.size); err != nil {
		return err
	}
	if err := makeBallast(b.small(), b.size/4); err != nil {
		os.Remove(b.path)
		return err
	}
	b.gone = false
	return nil
}

// makeBallast writes a file of random bytes. A sparse file, or one that the file system can
// compress, would reserve no space.
func makeBallast(path string, size int64) error {
	if info, err := os.Stat(path); err == nil && info.Size() == size {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	// All or nothing: until it is freed again, what a failed write has allocated is missing
	// elsewhere.
	if err = allocate(f, size); err == nil {
		_, err = io.CopyN(f, randomBytes(), size)
	}
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		os.Remove(path)
	}
	return err
}

func randomBytes() io.Reader {
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(rand.Uint32())
	}
	return rand.NewChaCha8(seed)
}

// startRoom is how much space a start needs for its own files.
const startRoom = 256 << 10

// MakeRoom removes the ballast before a start that has no space for its own files and need bytes more: the large
// file, and if that is not enough, the small one.
func (b *Ballast) MakeRoom(need int64) {
	if b.size <= 0 {
		return
	}
	for _, path := range []string{b.path, b.small()} {
		err := tryWrite(filepath.Dir(b.path), startRoom+need)
		if !IsFull(err) {
			return
		}
		b.Release(err)
		os.Remove(path)
		if errors.Is(err, syscall.EDQUOT) {
			settleDeletions(filepath.Dir(b.path))
		}
	}
}

// tryWrite writes a file of that size, and removes it.
func tryWrite(dir string, size int64) error {
	f, err := os.CreateTemp(dir, ".room-")
	if err != nil {
		return err
	}
	_, err = io.CopyN(f, randomBytes(), size)
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}

// Release removes the large file after a write has failed with why.
func (b *Ballast) Release(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tried = time.Now()
	quota := errors.Is(why, syscall.EDQUOT)
	b.quota.Store(quota)
	before := b.released.Swap(true)
	if b.path != "" && os.Remove(b.path) == nil && quota {
		settleDeletions(filepath.Dir(b.path))
	}
	if !before && b.told != nil {
		b.told(b.NoSpace())
	}
}

// lastResort removes the small file too, and reports whether there was one. It is for deletes
// and housekeeping that fail although the large file is gone. Where each overwrite needs new
// space, as on btrfs, they can use up the space of the large file before they have freed any.
// Without the small file's space nothing would ever work again.
func (b *Ballast) lastResort(why error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.released.Load() || b.size <= 0 || present(b.path) || os.Remove(b.small()) != nil {
		return false
	}
	b.gone = true
	if errors.Is(why, syscall.EDQUOT) {
		settleDeletions(filepath.Dir(b.path))
	}
	return true
}

// RetryInterval is the shortest time between two attempts to make the ballast again. A put
// starts an attempt; there is no timer.
const RetryInterval = 500 * time.Millisecond

// Regained reports whether the disk has space for puts. tried is true if it has just attempted
// to make the ballast again.
func (b *Ballast) Regained() (ok, tried bool) {
	if !b.released.Load() {
		return true, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.released.Load() {
		return true, false
	}
	if time.Since(b.tried) < RetryInterval {
		return false, false
	}
	b.tried = time.Now()
	if err := b.make(); err != nil {
		b.quota.Store(errors.Is(err, syscall.EDQUOT))
		return false, true
	}
	b.released.Store(false)
	if b.told != nil {
		b.told(nil)
	}
	return true, true
}

// Released reports whether the disk is full, or was at the last attempt.
func (b *Ballast) Released() bool { return b.released.Load() }

// Give removes a file of the ballast after a delete or housekeeping has failed with why, and
// reports whether there was one.
func (b *Ballast) Give(why error) bool {
	if b.lastResort(why) {
		return true
	}
	given := present(b.path)
	b.Release(why)
	return given
}

// SettleDeletions makes the file system commit what is under way, if a quota is used up. Until
// then, btrfs counts removed files as used.
func (b *Ballast) SettleDeletions() {
	if b.quota.Load() {
		settleDeletions(filepath.Dir(b.path))
	}
}
