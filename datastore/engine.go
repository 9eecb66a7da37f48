package datastore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Engine is a revisioned key-value store with etcd's data model, over an SQLite
// file. DESIGN.md beside this file tells how it works and what always holds.
//
// All methods may be called at any time by any goroutine. Call [OpenEngine] for
// one.
type Engine struct {
	path    string
	opts    Options
	file    *sqlitefile.File // nil in mode Memory
	cache   *valueCache
	ballast *directory.Ballast // empty in mode Memory

	snap  atomic.Pointer[snapshot] // the durable state; swapped by publish only
	pages pageCache                // snapshots that paged lists come back to

	// mu is the sequencer: who holds it decides what comes next.
	mu        sync.Mutex
	spec      index         // the durable state and everything on its way to the disk
	compacted int64         // the same of the compaction revision
	leases    leaseTable    // the same of the leases
	pending   *batch        // gathering; nil when there is nothing to commit
	inflight  *batch        // being committed
	taken     chan struct{} // closed when pending is taken
	tidy      chan struct{} // closed when compaction has nothing left to delete
	closing   bool
	fatal     error // why no write is taken any more

	wake     chan struct{} // to the committer: there is a batch, or closing
	failed   chan struct{} // closed when fatal is set
	stopped  chan struct{} // closed when the committer has ended
	stopOnce sync.Once

	reclaiming sync.WaitGroup // compactions of a full disk
	retry      atomic.Bool    // housekeeping that had no room should try again
	reclaimed  time.Time      // when a full disk was last reclaimed; guarded by mu
	stopError  error

	// The committer's own.
	reserved int64 // mode Relaxed: revisions up to it are reserved on the disk
	garbage  garbage
	unsynced bool
	deferred []*version // published heartbeats that are not written yet

	backlog  atomic.Int64 // rows waiting to be deleted
	watchers watcherSet
	commits  atomic.Int64
}

// OpenEngine opens or makes the database in the directory that lock holds. The
// lock must be kept until Close has returned; mode Memory needs none.
//
// After an unclean stop SQLite's own check runs first, and every row's checksum
// is verified always: a file with any damage is refused with [ErrCorrupt],
// naming the file and row, and so is one of a newer release with
// [ErrNewerSchema]. Nothing is ever repaired by leaving something out.
func OpenEngine(lock *directory.Lock, opts Options) (*Engine, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	e := &Engine{
		path:    "memory",
		ballast: &directory.Ballast{},
		opts:    opts,
		taken:   make(chan struct{}),
		wake:    make(chan struct{}, 1),
		failed:  make(chan struct{}),
		stopped: make(chan struct{}),
	}
	e.watchers.init()
	if opts.Durability == Memory {
		e.cache = newValueCache(0)
		e.start(opts.Initial.initial())
		return e, nil
	}
	if lock == nil {
		return nil, errors.New("open datastore: the data directory is not locked")
	}
	e.path = filepath.Join(lock.Dir(), EngineFile)
	e.ballast = directory.NewBallast(e.path, opts.BallastBytes, opts.OnFull)
	e.ballast.MakeRoom()
	state, err := e.openFile()
	if err != nil && sqlitefile.MayBeFull(err) && e.ballast.GiveAll(err) {
		// Even a start needs some room, for SQLite's own files.
		state, err = e.openFile()
	}
	if err != nil {
		return nil, err
	}
	e.ballast.Open()
	e.start(state)
	return e, nil
}

// openFile opens the database and loads it.
func (e *Engine) openFile() (state *initial, err error) {
	e.cache = newValueCache(e.opts.CacheBytes)
	if e.file, err = sqlitefile.Open(e.path, e.opts.file()); err != nil {
		return nil, err
	}
	if state, err = e.load(); err != nil {
		return nil, errors.Join(err, e.file.Close(false))
	}
	return state, nil
}

// start publishes what was loaded and starts the committer.
func (e *Engine) start(state *initial) {
	first := &snapshot{
		index:     state.index,
		compacted: state.compacted,
		history:   state.history,
	}
	e.spec = first.index.clone()
	e.compacted = state.compacted
	e.snap.Store(first)
	e.watchers.end = first.history.next
	e.garbage.ids = state.garbage
	e.garbage.vacuum = len(state.garbage) > 0
	e.backlog.Store(int64(len(state.garbage)))
	e.leases.init(e, state.leases, first.live)
	go e.run()
	if len(state.garbage) > 0 {
		e.wakeCommitter()
	}
}

// Close commits what is pending, ends every watch with [ErrClosed] and closes the
// file, which then is the whole state by itself. Calling it again answers the
// same.
func (e *Engine) Close() error {
	e.stopOnce.Do(func() {
		e.mu.Lock()
		e.closing = true
		if e.file != nil {
			e.file.GiveUp()
		}
		e.leases.stop()
		e.mu.Unlock()
		e.wakeCommitter()
		<-e.stopped
		e.reclaiming.Wait()
		e.watchers.closeAll()
		e.stopError = e.closeDisk()
	})
	return e.stopError
}

// closeDisk records a clean stop, unless there was a failure.
func (e *Engine) closeDisk() error {
	if e.file == nil {
		return nil
	}
	if e.fatal != nil {
		return errors.Join(e.fatal, e.file.Close(false))
	}
	if len(e.deferred) > 0 { // no space was found for them: the next start has to know
		return errors.Join(fmt.Errorf("close datastore: %w", e.ballast.NoSpace()), e.file.Close(false))
	}
	if e.opts.Durability == Relaxed {
		// First the log, then what says that it is whole.
		if err := e.file.Sync(); err != nil {
			return errors.Join(fmt.Errorf("sync datastore: %w", err), e.file.Close(false))
		}
	}
	return e.file.CloseInOrder(sqlitefile.Metas{"reserved": 0})
}

// WALWasCopied tells whether another program, such as an sqlite3 shell, had copied the
// whole log back into the database after the last stop. Nothing is missing then.
func (e *Engine) WALWasCopied() bool { return e.file != nil && e.file.WALWasCopied() }

// Path is the database file, or "memory".
func (e *Engine) Path() string { return e.path }

// Revision is the newest durable revision.
func (e *Engine) Revision() int64 { return e.snap.Load().revision }

// CompactRevision is the newest compaction: history before it may be gone. 0
// before the first one.
func (e *Engine) CompactRevision() int64 { return e.snap.Load().compacted }

// Failed is closed when the disk has failed and no write is taken any more; Err
// then says why.
func (e *Engine) Failed() <-chan struct{} { return e.failed }

// Err is the failure of the disk, or nil.
func (e *Engine) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fatal
}

// fail ends the taking of writes: what a failed COMMIT or fsync left on the disk is
// not known, and a later fsync that succeeds would say nothing of it
// (https://lwn.net/Articles/752063/).
func (e *Engine) fail(err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.poison(err)
}

// poison is fail for a caller that holds e.mu.
func (e *Engine) poison(err error) error {
	if e.fatal == nil {
		e.fatal = fmt.Errorf("%w: %s: %w", ErrUnknownOutcome, e.path, err)
		close(e.failed)
	}
	return e.fatal
}

// Stats are figures of a moment.
type Stats struct {
	Revision        int64
	CompactRevision int64
	Keys            int64 // keys that are there
	LiveBytes       int64 // of those keys and their values
	Events          int64 // changes that a watch can still see
	CacheBytes      int64 // values in memory
	FileBytes       int64 // size of the database
	WALBytes        int64 // size of SQLite's log
	Backlog         int64 // compacted rows not yet deleted
	Commits         int64 // batches since the start
	Watchers        int64
	SlowWatchers    int64 // watchers with events they have not taken
	Leases          int64
	NoSpace         bool // puts are refused until the disk has room
}

// Stats answers the figures of now.
func (e *Engine) Stats() Stats {
	snap := e.snap.Load()
	s := Stats{
		Revision:        snap.revision,
		CompactRevision: snap.compacted,
		Keys:            int64(snap.live.Len()),
		LiveBytes:       snap.bytes,
		Events:          int64(snap.history.next - snap.history.first),
		CacheBytes:      e.cache.bytes(),
		Backlog:         e.backlog.Load(),
		Commits:         e.commits.Load(),
		NoSpace:         e.ballast.Released(),
	}
	s.Watchers, s.SlowWatchers = e.watchers.counts()
	if e.file != nil {
		s.FileBytes, s.WALBytes = sqlitefile.Size(e.path), e.file.WALBytes()
	}
	e.mu.Lock()
	s.Leases = int64(len(e.leases.byID))
	e.mu.Unlock()
	return s
}

// value answers a version's value, from memory or from the disk.
func (e *Engine) value(v *version) ([]byte, error) {
	if p := v.value.Load(); p != nil {
		if !v.used.Load() {
			v.used.Store(true)
		}
		return *p, nil
	}
	if v.Tombstone() {
		return nil, nil
	}
	if e.file == nil {
		return nil, sqlitefile.ErrRowMissing
	}
	value, err := e.file.Read(&v.Row)
	if err != nil {
		return nil, err
	}
	e.cache.addValue(v, value)
	return value, nil
}

// Info tells of the engine's own database what [ReadInfo] tells, from memory.
func (e *Engine) Info() (*sqlitefile.Info, error) {
	if e.file == nil {
		return nil, errNoFile
	}
	return &sqlitefile.Info{Path: e.path, SchemaVersion: sqlitefile.SchemaVersion, Revision: e.Revision(), Bytes: sqlitefile.Size(e.path), WALBytes: e.file.WALBytes()}, nil
}

// Source reads the engine's own database as of one moment. It holds up no writer. In mode
// Memory there is none, and every reading says so.
func (e *Engine) Source() sqlitefile.Source {
	if e.file == nil {
		return noFile{}
	}
	return e.file
}

// noFile is the Source of an engine in mode Memory.
type noFile struct{}

func (noFile) Path() string { return "memory" }

func (noFile) View(context.Context, func(context.Context, *sqlitefile.Connection) error) error {
	return errNoFile
}
