package datastore

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Durability says when an acknowledged write survives a power loss.
type Durability int

const (
	// Full: always. Every batch of writes is on the disk before anyone is
	// told of it. The default.
	Full Durability = iota

	// Relaxed: after at most [Options.SyncInterval]. A process that is
	// killed loses nothing but [Options.Heartbeats]; revisions are never
	// used twice, because a range of them is reserved on the disk ahead of
	// use, and clients that saw a lost one are told to list again.
	Relaxed

	// Memory: never. There is no file; for tests.
	Memory
)

// String is the name of the mode in an endpoint: full, relaxed or memory.
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

// ParseDurability is the mode of a name that [Durability.String] gives.
func ParseDurability(name string) (Durability, error) {
	for d := Full; d <= Memory; d++ {
		if d.String() == name {
			return d, nil
		}
	}
	return 0, fmt.Errorf("durability: %q is none of full, relaxed, memory", name)
}

// Options configure an [Engine]. The zero value is what a server wants.
type Options struct {
	// Durability; default Full.
	Durability Durability

	// CacheBytes bounds the values kept in memory; those beyond it are read
	// from the disk when asked for. Default 64 MiB. Keys are always in memory.
	CacheBytes int64

	// SyncInterval is the longest time a write of mode Relaxed stays
	// unsynced. Default 100 ms.
	SyncInterval time.Duration

	// Heartbeats is a prefix of keys whose updates say only that something is
	// still there: in mode Relaxed they may be written HeartbeatInterval after they
	// are acknowledged, together; a killed process loses them. Empty for none.
	DeferredPrefix string

	// HeartbeatInterval is the longest time they are not written. Default 30 s.
	DeferredInterval time.Duration

	// BallastBytes is the size of a file that is kept only to be removed
	// when the disk is full, so that deletes and compaction have room.
	// Default 4 MiB; negative for none.
	BallastBytes int64

	// Contents are what an engine of mode Memory begins with, at their revision, as
	// if all before it had been compacted. Nil is nothing. Files have their own.
	Initial *Dump

	// OnCommit, if set, is told of every durable batch, for metrics. It is
	// called by the goroutine that commits and must not block.
	OnCommit func(Commit)

	// OnWait, if set, is told what a start or a write waits for: another program that
	// has the database open.
	OnWait func(error)

	// OnProgress, if set, is told how far a long start has come: what it does, and in
	// units of which total is all (0: not known). It is called only when something has
	// been done since the last call, often, by any goroutine, and must return soon.
	OnProgress func(what string, done, total int64)

	// OnFull, if set, is told when puts begin to be refused because the disk is full, and
	// by nil when they work again.
	OnFull func(error)

	shared       bool          // let other programs use the database, as where there is no exclusiveVFS
	busyPatience time.Duration // how long a start waits for other programs; busyPatience
}

// Commit describes one durable batch.
type Commit struct {
	Rows     int           // changes in the batch
	Duration time.Duration // from BEGIN to the end of COMMIT
}

// Validate reports every problem of the options at once.
func (o Options) Validate() error {
	var errs []error
	if o.Durability < Full || o.Durability > Memory {
		errs = append(errs, fmt.Errorf("durability: %v is none of full, relaxed, memory", o.Durability))
	}
	if o.CacheBytes < 0 {
		errs = append(errs, fmt.Errorf("cache: %d bytes is negative", o.CacheBytes))
	}
	if o.SyncInterval < 0 {
		errs = append(errs, fmt.Errorf("sync interval: %v is negative", o.SyncInterval))
	}
	if o.DeferredInterval < 0 {
		errs = append(errs, fmt.Errorf("heartbeat interval: %v is negative", o.DeferredInterval))
	}
	if o.Initial != nil && o.Durability != Memory {
		errs = append(errs, fmt.Errorf("contents: only an engine in memory begins with some, and durability is %v", o.Durability))
	}
	return errors.Join(errs...)
}

// file is what of the options the database is opened with.
func (o Options) file() sqlitefile.Options {
	return sqlitefile.Options{Relaxed: o.Durability == Relaxed, Shared: o.shared, Patience: o.busyPatience, OnWait: o.OnWait}
}

// progress is OnProgress for one thing that is done.
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
	if o.SyncInterval == 0 {
		o.SyncInterval = 100 * time.Millisecond
	}
	if o.DeferredInterval == 0 {
		o.DeferredInterval = 30 * time.Second
	}
	if o.busyPatience == 0 {
		o.busyPatience = sqlitefile.BusyPatience
	}
	if o.BallastBytes == 0 {
		o.BallastBytes = 4 << 20
	}
	return o
}
