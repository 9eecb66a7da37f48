// Package sqlitefile reads and writes the database of the engine, mvcc.db, and is the only
// package that knows SQLite. A [File] is the database of an engine; the functions are for
// databases that no engine of this process has open.
package sqlitefile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/karve-k8s/karve/datastore/directory"
)

// FileName is the name of the database in its directory.
const FileName = "mvcc.db"

// File is the open database of an engine: one connection that writes, for the committer only, and
// a few that read values.
//
// It uses the driver's connections without database/sql: there is no pool, no context that can be
// cancelled (for one, the driver starts a goroutine per statement), and every statement is
// prepared once.
//
// Read, View and WALBytes may be called by any goroutine at any time. The other methods
// are for one goroutine at a time.
type File struct {
	path    string
	own     os.FileInfo // of the database that is open
	relaxed bool
	writer  *Connection

	// gate is held shared by readers while their statement is open, and exclusively for commits
	// that must not find an open one: see WriteBack.
	gate    sync.RWMutex
	long    int              // number of long reads; guarded by gate
	readers chan *Connection // idle connections; closed with the file
	reading int              // number of connections that read

	rows, sum int64 // of the log table, for CloseInOrder

	walTarget  int64    // the size of the WAL at which a checkpoint is due
	wal        int64    // upper estimate of the bytes of the WAL that are not copied back
	restartWAL bool     // the next commit must find no reader, so that it restarts the WAL
	walFile    *os.File // for Sync; nil before the first one

	longReads sync.WaitGroup
	closing   bool // guarded by gate; no long read begins any more
	closed    context.Context
	endReads  context.CancelFunc // of closed

	sealed    bool // the newest commit says sealState
	mustOpen  bool // the database itself may say sealState: it must say openState before the next commit
	openState stopState
	sealState stopState

	// fail, if set, is called before each step; see OnStep.
	fail atomic.Pointer[func(step string) error]
}

// readersMax is the number of connections that read values.
const readersMax = 4

// Open opens the database at path, or makes it. It writes nothing to a file that it refuses with
// [ErrCorrupt], [ErrForeign], [ErrNewerSchema] or [ErrBusy]. If relaxed, a commit is durable only after [File.Sync].
func Open(path string, relaxed bool) (*File, error) {
	f := &File{path: path, relaxed: relaxed}
	f.openState, f.sealState = inUseStates(relaxed)
	f.walTarget = walTargetFull
	if relaxed {
		f.walTarget = walTargetRelaxed
	}
	f.closed, f.endReads = context.WithCancel(context.Background())
	query := pragmas(relaxed)
	if _, err := FinishReplacement(path); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	// The file itself decides: that something beside it is missing must not lead to a new database in
	// its place.
	there, err := directory.Exists(path)
	if err == nil && there {
		err = Inspect(path)
	} else if err == nil {
		err = create(path)
	}
	if err == nil {
		f.writer, err = f.connect(query)
	}
	if err == nil {
		f.own, err = os.Stat(path)
	}
	if err != nil {
		return nil, Explain(path, err)
	}
	f.readers = make(chan *Connection, readersMax)
	reading := pragmas(relaxed)
	reading.Set("mode", "ro") // see Close
	for range readersMax {
		c, err := f.connect(reading)
		if err != nil {
			f.Close(false)
			return nil, Explain(path, err)
		}
		f.readers <- c
		f.reading++
	}
	// A killed process has left it: nobody has it open, and this VFS makes none.
	if err := os.Remove(path + "-shm"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.Close(false)
		return nil, fmt.Errorf("open database: %w", err)
	}
	return f, nil
}

func (f *File) connect(query url.Values) (*Connection, error) {
	query = maps.Clone(query)
	query.Set("vfs", exclusiveVFS)
	return Connect(f.path, query)
}

// pragmas are those of a connection that shares the WAL.
func pragmas(relaxed bool) url.Values {
	synchronous := "FULL"
	if relaxed {
		synchronous = "NORMAL"
	}
	return url.Values{"_pragma": {
		"busy_timeout(10000)", // for another program, which may have the database open when the engine starts
		"journal_mode(WAL)",
		"synchronous(" + synchronous + ")",
		"wal_autocheckpoint(0)",
		"cache_size(-4096)",
	}, "mode": {"rw"}} // create makes it
}

// unmoved returns an error unless the path still leads to the database that is open, and not to another one or to nothing.
func (f *File) unmoved() error {
	info, err := os.Stat(f.path)
	if err == nil && !os.SameFile(info, f.own) {
		err = directory.ErrReplaced
	}
	if err != nil {
		return fmt.Errorf("%s is no longer the database that this server has open (%w): restart the server", f.path, err)
	}
	return nil
}

// Metas reads the meta table.
func (f *File) Metas() (Metas, error) {
	metas, err := f.writer.Metas()
	if err != nil {
		return nil, Explain(f.path, err)
	}
	return metas, nil
}

// Leases reads the lease table: TTLs in seconds by id.
func (f *File) Leases() (map[int64]int64, error) {
	leases, err := f.writer.Leases()
	if err != nil {
		return nil, Explain(f.path, err)
	}
	return leases, nil
}

// Load calls do for every row of the log table, in order. The error is [ErrCorrupt] at the first
// damaged row.
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

// QuickCheck runs SQLite's own check of the structure of the file.
func (f *File) QuickCheck() error {
	problems, err := f.writer.QuickCheck(context.Background(), 1)
	if err != nil {
		return Explain(f.path, err)
	}
	if len(problems) > 0 {
		return fmt.Errorf("%w: %s: %s (%s)", ErrCorrupt, f.path, problems[0], Remedy)
	}
	return nil
}

// CheckRows compares what Load has read with what the last stop in order has left.
func (f *File) CheckRows(metas Metas) error {
	if metas.Misses(f.rows, f.sum) {
		return fmt.Errorf("%w: %s has %d rows, and the last stop left %d (%s)", ErrCorrupt, f.path, f.rows, metas["log_rows"], Remedy)
	}
	return nil
}

// account counts a row that was added (+1) or deleted (-1), for CloseInOrder.
func (f *File) account(id int64, sign int64) {
	f.rows += sign
	f.sum += sign * RowSum(id)
}

// CloseInOrder copies everything back into the database, marks it as closed in order, and closes
// it. In mode relaxed, call [File.Sync] before. On a full disk it calls room, and tries again if that made some.
func (f *File) CloseInOrder(metas Metas, room func(why error) bool) error {
	f.endLongReads() // otherwise the copy would end where they began
	with := Metas{"log_rows": f.rows, "log_sum": f.sum}
	maps.Copy(with, metas)
	mark := func() error {
		if err := f.setState(stopClosed, with); err != nil {
			return err
		}
		return f.copyBack()
	}
	err := mark()
	for IsFull(err) && room(err) {
		err = mark()
	}
	if err != nil {
		return errors.Join(err, f.Close(false))
	}
	return f.Close(f.wal == 0)
}

// Close waits for the readers and closes all connections. Unless clean is true, it changes no file: the WAL
// has the newest commits.
func (f *File) Close(clean bool) error {
	connections := []*Connection{f.writer}
	for range f.reading {
		connections = append(connections, <-f.readers)
	}
	if clean {
		// The last connection to close copies the WAL back and removes it. One that only reads cannot.
		slices.Reverse(connections)
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

// OnStep makes the file call do before each step of a commit, a checkpoint and a sync. If do
// returns an error, the step fails with it. It is for tests of failing disks; the engine's tests
// need it too, so it is exported.
func (f *File) OnStep(do func(step string) error) { f.fail.Store(&do) }
