package sqlitefile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// EngineFile is the name of the engine's database inside the data directory.
const FileName = "mvcc.db"

// File is the database of an engine while it is open: one connection that writes, which
// only the committer uses, and a few that read values back.
//
// It works on the driver's connections, without database/sql: no pool, no context that can
// be cancelled (the driver starts a goroutine per statement for one), and statements that
// are prepared once.
type File struct {
	path     string
	relaxed  bool
	patience time.Duration
	writer   *Connection

	vfs string // of the connections; empty for SQLite's default

	// gate is held shared by readers while a statement of theirs is open, and
	// exclusively for commits that must not find any: see WriteBack.
	gate    sync.RWMutex
	long    int              // long reads that are under way; guarded by gate
	readers chan *Connection // those at rest; closed with the file
	reading int              // how many there are

	rows, sum int64 // of the log table, as CloseInOrder records them

	wal        int64 // upper estimate of the bytes of the WAL that are not copied back
	restartWAL bool  // the next commit has to find no reader, so that the WAL begins anew
	walFile    *os.File

	longReads sync.WaitGroup
	closing   bool // guarded by gate: no long read begins
	closed    context.Context
	endReads  context.CancelFunc // of closed

	giveUp atomic.Bool // the engine is about to close: wait for no other program
	onWait func(error)

	walWasCopied bool // another program had written the WAL back before this start
	sealing      bool // nobody else can checkpoint the WAL: the states below are kept
	sealed       bool // the newest commit says sealState
	mustOpen     bool // the database itself may say sealState: no commit before it says openState
	openState    stopState
	sealState    stopState

	// fail, if set, is asked before each step that a test wants to break.
	fail atomic.Pointer[func(step string) error]
}

// FileOptions say how an engine uses its database.
type Options struct {
	Relaxed  bool          // a commit is not on the disk before [File.Sync]
	Shared   bool          // other programs may use the database, as where there is no exclusiveVFS
	Patience time.Duration // how long a start waits for other programs
	OnWait   func(error)   // is told what a start or a commit waits for; may be nil
}

// readersMax is how many connections read values.
const readersMax = 4

// OpenFile opens or makes the database. Nothing is written to a file that is refused:
// [ErrCorrupt], [ErrForeign], [ErrNewerSchema] or [ErrBusy].
func Open(path string, opts Options) (*File, error) {
	f := &File{path: path, relaxed: opts.Relaxed, patience: opts.Patience, vfs: exclusiveVFS, sealing: exclusiveVFS != "", onWait: opts.OnWait}
	if opts.Shared {
		f.vfs, f.sealing = "", false
	}
	f.openState, f.sealState = inUseStates(opts.Relaxed)
	f.closed, f.endReads = context.WithCancel(context.Background())
	query := pragmas(opts.Relaxed)
	err := f.patiently(f.patience, func() (err error) {
		if f.walWasCopied, err = Inspect(path, SchemaVersion); errors.Is(err, fs.ErrNotExist) {
			err = create(path)
		}
		if err == nil {
			f.writer, err = f.connect(query)
		}
		return err
	})
	if err != nil {
		return nil, Explain(path, err)
	}
	f.readers = make(chan *Connection, readersMax)
	if v, err := f.writer.Number("PRAGMA user_version"); err != nil || v < SchemaVersion {
		if err == nil {
			err = fmt.Errorf("%w: %s has schema %d, this release has %d", ErrOlderSchema, path, v, SchemaVersion)
		}
		return nil, errors.Join(Explain(path, err), f.Close(false))
	}
	for range readersMax {
		c, err := f.connect(query)
		if err != nil {
			f.Close(false)
			return nil, Explain(path, err)
		}
		f.readers <- c
		f.reading++
	}
	if f.vfs != "" {
		// Of a process that was killed: nobody has it open, and we make none.
		if err := os.Remove(path + "-shm"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			f.Close(false)
			return nil, fmt.Errorf("open database: %w", err)
		}
	}
	return f, nil
}

func (f *File) connect(query url.Values) (*Connection, error) {
	if f.vfs != "" {
		with := url.Values{"vfs": {f.vfs}}
		for name, values := range query {
			with[name] = values
		}
		query = with
	}
	return Connect(f.path, query)
}

// pragmas of a connection that takes part in the WAL.
func pragmas(relaxed bool) url.Values {
	synchronous := "FULL"
	if relaxed {
		synchronous = "NORMAL"
	}
	return url.Values{"_pragma": {
		"busy_timeout(100)",
		"journal_mode(WAL)",
		"synchronous(" + synchronous + ")",
		"wal_autocheckpoint(0)",
		"cache_size(-4096)",
	}}
}

func (f *File) patiently(patience time.Duration, try func() error) error {
	return patiently(f.path, patience, f.onWait, try)
}

// GiveUp has commits no longer wait for other programs: the engine is about to close.
func (f *File) GiveUp() { f.giveUp.Store(true) }

// WALWasCopied tells whether another program had copied the whole WAL back into the
// database before this start.
func (f *File) WALWasCopied() bool { return f.walWasCopied }

// Metas reads the meta table.
func (f *File) Metas() (Metas, error) {
	metas, err := f.writer.Metas()
	if err != nil {
		return nil, Explain(f.path, err)
	}
	return metas, nil
}

// Leases reads the lease table: the TTL in seconds by id.
func (f *File) Leases() (map[int64]int64, error) {
	leases, err := f.writer.Leases()
	if err != nil {
		return nil, Explain(f.path, err)
	}
	return leases, nil
}

// Load calls do for every row of the log table, in order. Damage is [ErrCorrupt].
func (f *File) Load(do func(r Row, value []byte) error) error {
	f.rows, f.sum = 0, 0
	err := f.writer.EachRow(AllRows, func(r Row, value []byte, bad error) error {
		if bad != nil {
			return bad
		}
		f.account(r.ID, +1)
		return do(r, value)
	})
	if sqliteCode(err) != 0 {
		return Explain(f.path, err)
	}
	return err
}

// QuickCheck is SQLite's own check of the file's structure.
func (f *File) QuickCheck() error {
	found, err := f.writer.quickCheck()
	if err == nil && found != "ok" {
		return fmt.Errorf("%w: %s: %s (%s)", ErrCorrupt, f.path, found, Remedy)
	}
	if err != nil {
		return Explain(f.path, err)
	}
	return nil
}

// account keeps the figures that CloseInOrder records.
func (f *File) account(id int64, sign int64) {
	f.rows += sign
	f.sum += sign * RowSum(id)
}

// CloseInOrder makes the database, without its WAL, everything there is, says so in it, and
// closes it. Commits of mode relaxed are synced before.
func (f *File) CloseInOrder(metas Metas) error {
	f.endLongReads() // or the copy would end where they began
	with := Metas{"log_rows": f.rows, "log_sum": f.sum}
	for name, value := range metas {
		with[name] = value
	}
	err := f.setState(stopClosed, with)
	if err == nil {
		err = f.copyBack()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("close datastore: %w", err), f.Close(false))
	}
	return f.Close(f.wal == 0)
}

// Close waits for the readers and closes all connections. SQLite then leaves its WAL, which
// is the evidence of what was committed, unless the stop is clean: then the database alone is
// everything.
func (f *File) Close(clean bool) error {
	connections := []*Connection{f.writer}
	for range f.reading {
		connections = append(connections, <-f.readers)
	}
	close(f.readers)
	f.endLongReads()
	var errs []error
	for _, c := range connections {
		errs = append(errs, c.PersistWAL(!clean))
	}
	for _, c := range connections {
		errs = append(errs, c.Close())
	}
	if f.walFile != nil {
		errs = append(errs, f.walFile.Close())
	}
	return errors.Join(errs...)
}

// OnStep calls do before each step of a commit, a checkpoint and a sync, which then fails with
// the error of do: for tests of what a failing disk leaves.
func (f *File) OnStep(do func(step string) error) { f.fail.Store(&do) }
