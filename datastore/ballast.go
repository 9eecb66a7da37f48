package datastore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// ballast is two files that take up room for an emergency. When the disk is full the
// large one is removed: deletes and compaction then have space, and puts are refused until
// it could be made again, which proves that there is room for them too. The small one
// stays, whoever fills the disk further: it is removed by a start that has no room.
type ballast struct {
	path string
	size int64       // of the large one; the small one has a quarter of it
	told func(error) // Options.OnFull; may be nil

	released atomic.Bool // the disk is full, or was when somebody last looked
	quota    atomic.Bool // a quota is used up, which free space says nothing of
	mu       sync.Mutex
	tried    time.Time // last attempt to make it again
	gone     bool      // the small one too, as the last resort
}

// ballastMargin is what has to be free beside the ballast: for the files of a start, such
// as the administrator's kubeconfig, and the log.
const ballastMargin = 1 << 20

// open makes the ballast. A disk that has no room for it counts as full.
func (b *ballast) open() {
	if b.released.Load() {
		return // it was needed to start: the first put looks again
	}
	err := b.make()
	if isFull(err) {
		settleDeletions(filepath.Dir(b.path)) // somebody may have made room just before this start
		err = b.make()
	}
	if err != nil {
		b.release(err)
	}
}

func (b *ballast) small() string { return b.path + ".start" }

func (b *ballast) exists() bool { return present(b.path) || present(b.small()) }

func present(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// needs is how much has to be free to make what is missing, with a margin.
func (b *ballast) needs() int64 {
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
func (b *ballast) make() error {
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

// makeRoom removes what is there of the ballast, the small file last, before a start that
// has no room for its own files.
func (b *ballast) makeRoom() {
	if b.size <= 0 {
		return
	}
	for _, path := range []string{b.path, b.small()} {
		err := tryWrite(filepath.Dir(b.path))
		if free, known := freeBytes(filepath.Dir(b.path)); known && free < ballastMargin/4 && err == nil {
			err = syscall.ENOSPC
		}
		if !isFull(err) {
			return
		}
		b.release(err)
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

// release gives the room away; why is what could not be written.
func (b *ballast) release(why error) {
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
		b.told(b.noSpace())
	}
}

// lastResort gives the small file away too, and tells whether there was one: for deletes
// and housekeeping that fail although the large one is gone. Where each overwrite needs new
// space, as on btrfs, they can use up the large one before they have made any room.
// Without room nothing would ever work again; with it the files are made anew.
func (b *ballast) lastResort(why error) bool {
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

// noSpace is ErrNoSpace with where, why, and what to do about it.
func (b *ballast) noSpace() error {
	var why []string
	if b.quota.Load() {
		why = append(why, "a disk quota is used up")
	}
	do := "make room there, or delete objects; writes then work again by themselves"
	free, known := freeBytes(filepath.Dir(b.path))
	if known {
		why = append(why, fmt.Sprintf("%.1f MiB free on its file system", float64(free)/(1<<20)))
	}
	if need := b.needs(); b.size > 0 && known && free >= need && !b.quota.Load() {
		do = "try again in a moment"
	} else if b.size > 0 {
		why = append(why, fmt.Sprintf("writes need %.1f MiB", float64(need)/(1<<20)))
	}
	return fmt.Errorf("%w in %s (%s): %s", ErrNoSpace, filepath.Dir(b.path), strings.Join(why, ", "), do)
}

// NoSpace is the error of a write that the disk has no room for, as of now.
func (e *Engine) NoSpace() error { return e.ballast.noSpace() }

// ballastRetry is how often a full disk is looked at, and only when somebody
// wants to put something: there is no timer.
const ballastRetry = 500 * time.Millisecond

// makeRoom gives ballast away for a write that needs no space of its own, and tells
// whether there was any to give.
func (e *Engine) makeRoom(why error) bool {
	if e.ballast.lastResort(why) {
		return true
	}
	given := present(e.ballast.path)
	e.ballast.release(why)
	return given
}

// regained looks whether the disk has room again; tried tells that it has just been
// looked for.
func (b *ballast) regained() (ok, tried bool) {
	if !b.released.Load() {
		return true, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.released.Load() {
		return true, false
	}
	if time.Since(b.tried) < ballastRetry {
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

// roomForPuts refuses what needs space while the disk is full. The caller holds e.mu.
func (e *Engine) roomForPuts() error {
	ok, tried := e.ballast.regained()
	if ok {
		return nil
	}
	if tried {
		e.reclaim()
	}
	return e.ballast.noSpace()
}

// reclaimSometimes reclaims while somebody deletes on a full disk: many deletes take what
// room there is before they have given any back. The caller holds e.mu.
func (e *Engine) reclaimSometimes() {
	if e.ballast.released.Load() && time.Since(e.reclaimed) >= ballastRetry {
		e.reclaim()
	}
}

// reclaim lets housekeeping go on and compacts to the newest revision, while a disk is full
// and somebody wants to put or delete something: what was deleted still takes room as history, and the API server compacts
// that after five minutes only. Watches that are behind have to list again, which is
// better than a cluster that takes no write. The caller holds e.mu.
func (e *Engine) reclaim() {
	e.reclaimed = time.Now()
	e.retry.Store(true)
	e.wakeCommitter()
	revision := e.snap.Load().revision
	if revision <= e.compacted || e.backlog.Load() > 0 || e.closing {
		return
	}
	e.reclaiming.Go(func() { _ = e.Compact(context.Background(), revision, false) }) // the next put tries again
}
