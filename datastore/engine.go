// Package datastore is the storage engine: etcd's data model (revisions,
// transactions, watches, leases, compaction) over one SQLite file,
// <data-dir>/mvcc.db, in a directory that it locks.
//
// A server begins with [github.com/karve-k8s/karve/datastore/admin.Open], which first finishes a
// restore that was stopped. DESIGN.md has the decisions, the rooms and what always holds.
package datastore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// EngineFile is the name of the engine's database in its directory.
const EngineFile = sqlitefile.FileName

// Engine is a revisioned key-value store with etcd's data model, over a SQLite file. DESIGN.md explains how
// it works and lists its invariants. [OpenEngine] makes one.
//
// Any goroutine may call any method at any time.
type Engine struct {
	path    string
	opts    Options
	file    *sqlitefile.File // nil in mode Memory
	cache   *valueCache
	ballast *directory.Ballast // empty in mode Memory

	snap  atomic.Pointer[snapshot] // the durable state; only publish and bury replace it
	pages pageCache                // states that the next pages of lists are read from

	// mu is the sequencer: its holder decides what comes next.
	mu        sync.Mutex
	spec      index         // speculative: the durable state and everything on its way to the disk
	compacted int64         // speculative compaction revision
	leases    leaseTable    // speculative leases
	pending   *batch        // gathering; nil when there is nothing to commit
	inflight  *batch        // being committed
	taken     chan struct{} // closed when pending is taken
	closing   bool
	fatal     error // why the engine refuses writes

	wake     chan struct{} // wakes the committer: there is a batch, or the engine is closing
	failed   chan struct{} // closed when fatal is set
	stopped  chan struct{} // closed when the committer has ended
	stopOnce sync.Once

	reclaiming sync.WaitGroup // compactions that reclaim has started
	retry      atomic.Bool    // housekeeping that had no space is to try again
	reclaimed  time.Time      // last call of reclaim; guarded by mu
	stopError  error

	// Only the committer uses these.
	reserved  int64 // mode Relaxed: revisions up to it are reserved on the disk
	garbage   garbage
	unsynced  bool
	deferred  []*version // published and not written yet; see deferred.go
	unwritten error      // why a stop could not write them

	published signal       // there is a new revision
	backlog   atomic.Int64 // number of rows that compaction has yet to delete
	tidy      signal       // the backlog is empty
	watchers  watcherSet
	commits   atomic.Int64
}

// OpenEngine opens or makes the database in a locked directory. Keep the lock until Close has returned.
// Mode Memory needs none.
//
// OpenEngine verifies the checksum of every row. After an unclean stop, it runs SQLite's own check first. It
// refuses a damaged file with [ErrCorrupt] and names the file and the row. It refuses a database of a newer
// release with [sqlitefile.ErrNewerSchema]. It never repairs a file by
// leaving something out.
func OpenEngine(lock *directory.Lock, opts Options) (*Engine, error) {
	if opts.Initial != nil && opts.Durability != Memory {
		return nil, fmt.Errorf("open datastore: initial contents need durability memory, and it is %v", opts.Durability)
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
	e.ballast.MakeRoom(sqlitefile.Size(e.path + "-wal")) // which a start may have to copy back
	state, err := e.openFile()
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
	if e.file, err = sqlitefile.Open(e.path, e.opts.Durability == Relaxed); err != nil {
		return nil, err
	}
	if state, err = e.load(); err != nil {
		return nil, errors.Join(err, e.file.Close(false))
	}
	return state, nil
}

// start publishes the initial state and starts the committer.
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

// Close commits what is pending, ends every watch with [ErrClosed] and closes the file, which then has the
// whole state without its WAL. Calling it again returns the same error.
func (e *Engine) Close() error {
	e.stopOnce.Do(func() {
		e.mu.Lock()
		e.closing = true
		e.leases.stop()
		e.mu.Unlock()
		e.wakeCommitter()
		<-e.stopped
		e.reclaiming.Wait()
		e.watchers.closeAll()
		e.stopError = e.closeFile()
	})
	return e.stopError
}

// closeFile records a clean stop, unless there was a failure. Its error names the file.
func (e *Engine) closeFile() error {
	if e.file == nil {
		return nil
	}
	if e.fatal != nil {
		return errors.Join(e.fatal, e.file.Close(false))
	}
	if err := e.closeInOrder(); err != nil {
		return fmt.Errorf("close datastore %s: %w", e.path, err)
	}
	return nil
}

func (e *Engine) closeInOrder() error {
	if err := e.unwritten; err != nil { // the next start must see an unclean stop
		if sqlitefile.IsFull(err) {
			err = e.ballast.NoSpace()
		}
		return errors.Join(err, e.file.Close(false))
	}
	if e.opts.Durability == Relaxed {
		// The commits must be durable before the mark of a clean stop.
		if err := e.file.Sync(); err != nil {
			return errors.Join(err, e.file.Close(false))
		}
	}
	return e.file.CloseInOrder(sqlitefile.Metas{"reserved": 0}, e.ballast.Give)
}

// Path returns the path of the database, or "memory".
func (e *Engine) Path() string { return e.path }

// Revision returns the newest durable revision.
func (e *Engine) Revision() int64 { return e.snap.Load().revision }

// CompactRevision returns the compaction revision, or 0 before the first compaction.
func (e *Engine) CompactRevision() int64 { return e.snap.Load().compacted }

// Failed returns a channel that is closed when the engine refuses all further writes, because the disk has
// failed or a transaction has panicked. Err then returns the reason.
func (e *Engine) Failed() <-chan struct{} { return e.failed }

// Err returns the reason why the engine refuses all writes, or nil.
func (e *Engine) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fatal
}

// fail makes the engine refuse all further writes. After a failed COMMIT or fsync it is not known what is on
// the disk, and a later fsync that succeeds does not change that (https://lwn.net/Articles/752063/).
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

// Stats are the figures of an engine.
type Stats struct {
	Revision        int64
	CompactRevision int64
	Keys            int64 // live keys
	LiveBytes       int64 // of the live keys and their values
	Events          int64 // changes that a watch can still see
	CacheBytes      int64 // of values in memory
	FileBytes       int64 // size of the database
	WALBytes        int64 // size of the WAL
	Backlog         int64 // number of rows that compaction has yet to delete
	Commits         int64 // number of batches since the start
	Watchers        int64
	SlowWatchers    int64 // watchers that are behind by more than one response
	Leases          int64
	NoSpace         bool // puts are refused until the disk has space
}

// Stats returns the present figures.
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

// value returns the value of a version, from memory or from the disk.
func (e *Engine) value(v *version) (value []byte, err error) {
	if p := v.remembered(); p != nil {
		return *p, nil
	}
	err = e.values([]*version{v}, func(_ int, of []byte) { value = of })
	return value, err
}

// remembered returns the value of a version if it is in memory, or nil.
func (v *version) remembered() *[]byte {
	p := v.value.Load()
	if p != nil && !v.used.Load() {
		v.used.Store(true)
	}
	return p
}

// valuesAtOnce is how many values are read from the disk at once. A write may wait for as long as that takes.
const valuesAtOnce = 256

// values calls each with the index of every version and its value, from memory or from the disk, in any order.
func (e *Engine) values(of []*version, each func(i int, value []byte)) error {
	var absent []int
	for i, v := range of {
		switch p := v.remembered(); {
		case p != nil:
			each(i, *p)
		case v.Tombstone():
			each(i, nil)
		case e.file == nil:
			return sqlitefile.ErrRowMissing
		default:
			absent = append(absent, i)
		}
	}
	slices.SortFunc(absent, func(a, b int) int { return cmp.Compare(of[a].ID, of[b].ID) }) // as they lie on the disk
	for some := range slices.Chunk(absent, valuesAtOnce) {
		rows := make([]*sqlitefile.Row, len(some))
		for i, at := range some {
			rows[i] = &of[at].Row
		}
		err := e.file.Read(rows, func(i int, value []byte) {
			e.cache.addValue(of[some[i]], value)
			each(some[i], value)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Info returns from memory what [sqlitefile.ReadInfo] reads from the database.
func (e *Engine) Info() (*sqlitefile.Info, error) {
	if e.file == nil {
		return nil, errNoFile
	}
	return &sqlitefile.Info{Path: e.path, SchemaVersion: sqlitefile.SchemaVersion, Revision: e.Revision(), Bytes: sqlitefile.Size(e.path), WALBytes: e.file.WALBytes()}, nil
}

// Source returns the engine's own database, to read it in one transaction while the engine runs. In mode
// Memory there is none, and View returns an error.
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
