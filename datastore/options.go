package datastore

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Durability says when an acknowledged write survives a power loss.
type Durability int

const (
	// Full: always. Every batch of writes is on the disk before it is acknowledged or visible. The
	// default.
	Full Durability = iota

	// Relaxed: after 100 ms at most. A killed process loses only deferred updates
	// ([Options.DeferredPrefix]). No revision is used twice, because revisions are reserved on the disk
	// before their use. A client that has seen a lost one has to list again.
	Relaxed

	// Memory: never. There is no file; for tests.
	Memory
)

// String returns the name of the mode in an endpoint: full, relaxed or memory.
func (d Durability) String() string {
	switch d {
	case Full:
		return "full"
	case Relaxed:
		return "relaxed"
	case Memory:
		return "memory"
	}
	return fmt.Sprintf("Durability(%d)", int(d))
}

// ParseDurability returns the mode of a name; see [Durability.String].
func ParseDurability(name string) (Durability, error) {
	for d := Full; d <= Memory; d++ {
		if d.String() == name {
			return d, nil
		}
	}
	return 0, fmt.Errorf("durability=%s: want full, relaxed or memory", name)
}

// Options configure an [Engine]. The zero value is what a server wants.
type Options struct {
	// Durability; default Full.
	Durability Durability

	// CacheBytes bounds the values in memory. The engine reads others from the disk. Default 64 MiB. Keys are
	// always in memory.
	CacheBytes int64

	// DeferredPrefix is a prefix of keys whose updates only say that their writer is still alive. In mode Relaxed
	// they may be written together, a minute after they are acknowledged. A killed process loses them.
	// Empty for none.
	DeferredPrefix string

	// BallastBytes is the size of a file that reserves space: it is removed when the disk is full, so that deletes
	// and compaction can go on. It needs more than the 3 MiB of the WAL that a checkpoint may copy. On btrfs
	// the file has four times that size. Default 4 MiB; negative for none.
	BallastBytes int64

	// Initial is what an engine of mode Memory begins with, at the revision of the dump, as if everything before
	// were compacted. Nil is an empty store.
	Initial *Dump

	// OnCommit, if set, is called for every durable batch, for metrics. The committer calls it, so it must not
	// block.
	OnCommit func(Commit)

	// OnProgress, if set, is called with how far a long start has come: what it is doing, and done of total units
	// (0: not known). Any goroutine calls it, often, but only when there is progress since the last call. It must
	// return soon.
	OnProgress func(what string, done, total int64)

	// OnFull, if set, is called with an error when puts begin to be refused because the disk is full, and with nil
	// when they work again.
	OnFull func(error)

	// Tests have others than withDefaults.
	syncInterval     time.Duration // how long a write of mode Relaxed stays unsynced at most
	deferredInterval time.Duration // how long updates of DeferredPrefix stay unwritten at most
}

// Commit describes one durable batch.
type Commit struct {
	Rows     int           // number of changes
	Duration time.Duration // from BEGIN to the end of COMMIT
}

// Progress returns OnProgress for one operation, or nil.
func (o Options) Progress(what string) sqlitefile.Progress {
	if o.OnProgress == nil {
		return nil
	}
	var last atomic.Int64
	last.Store(-1)
	return func(done, total int64) {
		if before := last.Swap(done); done > before {
			o.OnProgress(what, done, total)
		}
	}
}

func (o Options) withDefaults() Options {
	if o.CacheBytes == 0 {
		o.CacheBytes = 64 << 20
	}
	if o.syncInterval == 0 {
		o.syncInterval = 100 * time.Millisecond
	}
	if o.deferredInterval == 0 {
		o.deferredInterval = time.Minute
	}
	if o.BallastBytes == 0 {
		o.BallastBytes = 4 << 20
	}
	return o
}
