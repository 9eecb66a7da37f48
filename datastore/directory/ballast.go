package directory

import (
	"bytes"
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

// ballast is two files that take up room for an emergency. When the disk is full the
// large one is removed: deletes and compaction then have space, and puts are refused until
// it could be made again, which proves that there is room for them too. The small one
// stays, whoever fills the disk further: it is removed by a start that has no room.
type Ballast struct {
	path string
	size int64       // of the large one; the small one has a quarter of it
	told func(error) // is told when puts begin to be refused, and by nil when they work again; may be nil

	released atomic.Bool // the disk is full, or was when somebody last looked
	quota    atomic.Bool // a quota is used up, which free space says nothing of
	mu       sync.Mutex
	tried    time.Time // last attempt to make it again
	gone     bool      // the small one too, as the last resort
}

// NewBallast is the ballast of a database. Nothing is made yet; size is that of the large file,
// or negative for none.
func NewBallast(database string, size int64, told func(error)) *Ballast {
	return &Ballast{path: database + ".ballast", size: size, told: told}
}

// ballastMargin is what has to be free beside the ballast: for the files of a start, such
// as the administrator's kubeconfig, and the log.
const ballastMargin = 1 << 20

// Open makes the ballast. A disk that has no room for it counts as full.
func (b *Ballast) Open() {
	if b.released.Load() {
		return // it was needed to start: the first put looks again
	}
	err := b.make()
	if IsFull(err) {
		settleDeletions(filepath.Dir(b.path)) // somebody may have made room just before this start
		err = b.make()
	}
	if err != nil {
		b.Release(err)
	}
}

func (b *Ballast) small() string { return b.path + ".start" }

func (b *Ballast) exists() bool { return present(b.path) || present(b.small()) }

func present(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// needs is how much has to be free to make what is missing, with a margin.
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
	if free, known := freeBytes(filepath.Dir(b.path)); known && free < b.needs() && b.needs() > ballastMargin {
		return syscall.ENOSPC // to fill the disk up, even for a moment, could be others' failure
	}
	if !b.gone {
		if err := makeBallast(b.small(), b.size/4); err != nil {
			return err
		}
		return makeBallast(b.path, b.size)
	}
	// Housekeeping needs what little room there is until there is enough for both.
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

// makeBallast writes a file, with its blocks: a sparse one would hold no room, and neither
// would one that the file system can compress.
func makeBallast(path string, size int64) error {
	if info, err := os.Stat(path); err == nil && info.Size() == size && !compressible(path) {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	// All or nothing: what a failed write has taken, and gives back later, others lack.
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

// compressible tells whether a file repeats itself, as releases before have written it.
func compressible(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	block := make([]byte, 512)
	if _, err := io.ReadFull(f, block); err != nil {
		return false
	}
	return bytes.Equal(block[:256], block[256:])
}

// MakeRoom removes what is there of the ballast, the small file last, before a start that
// has no room for its own files.
func (b *Ballast) MakeRoom() {
	if b.size <= 0 {
		return
	}
	for _, path := range []string{b.path, b.small()} {
		err := tryWrite(filepath.Dir(b.path))
		if free, known := freeBytes(filepath.Dir(b.path)); known && free < ballastMargin/4 && err == nil {
			err = syscall.ENOSPC
		}
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

// tryWrite writes a file as large as the first pages of a log, and removes it.
func tryWrite(dir string) error {
	f, err := os.CreateTemp(dir, ".room-")
	if err != nil {
		return err
	}
	_, err = io.CopyN(f, randomBytes(), 64<<10)
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}

// Release gives the room away; why is what could not be written.
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

// lastResort gives the small file away too, and tells whether there was one: for deletes
// and housekeeping that fail although the large one is gone. Where each overwrite needs new
// space, as on btrfs, they can use up the large one before they have made any room.
// Without room nothing would ever work again; with it the files are made anew.
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

// ballastRetry is how often a full disk is looked at, and only when somebody
// wants to put something: there is no timer.
const RetryInterval = 500 * time.Millisecond

// Regained looks whether the disk has room again; tried tells that it has just been
// looked for.
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

// Released tells whether the disk is full, or was when somebody last looked.
func (b *Ballast) Released() bool { return b.released.Load() }

// Give gives ballast away for a write that needs no space of its own, and tells whether there
// was any to give.
func (b *Ballast) Give(why error) bool {
	if b.lastResort(why) {
		return true
	}
	given := present(b.path)
	b.Release(why)
	return given
}

// GiveAll gives all of it away, for a start that has no room for its own files, and tells
// whether there was any.
func (b *Ballast) GiveAll(why error) bool {
	if !b.exists() {
		return false
	}
	b.Release(why)
	os.Remove(b.small())
	return true
}

// SettleDeletions has the file system finish what is under way if a quota is used up: btrfs
// counts what was removed as used until then.
func (b *Ballast) SettleDeletions() {
	if b.quota.Load() {
		settleDeletions(filepath.Dir(b.path))
	}
}
