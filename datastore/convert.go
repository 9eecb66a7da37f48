package datastore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// ErrTwoStores: the directory has a database of kine's and one of the engine that
// was not made from it. Neither is touched.
var ErrTwoStores = errors.New("two databases in one data directory")

// ErrNotEmpty: an import would replace data that is there already.
var ErrNotEmpty = errors.New("data directory already has data")

// ConvertedSuffix is what the name of a converted [FileName] ends in.
const ConvertedSuffix = ".converted"

// Conversion tells what was made of a database of kine's.
type Conversion struct {
	From     string        `json:"from"`           // the file that was read
	To       string        `json:"to"`             // the file that was made
	Kept     string        `json:"kept,omitempty"` // what From is called now, if it was renamed
	Revision int64         `json:"revision"`       // of both
	Keys     int64         `json:"keys"`
	Leases   int64         `json:"leases"` // keys with a TTL; each starts anew
	Took     time.Duration `json:"-"`
}

// OpenConverted is [OpenEngine] in a directory that may have a database of kine's:
// that is converted first. The conversion is nil if there was none to do.
func OpenConverted(ctx context.Context, lock *Lock, opts Options) (*Engine, *Conversion, error) {
	if err := opts.Validate(); err != nil {
		return nil, nil, err
	}
	if opts.Durability == Memory || lock == nil {
		e, err := OpenEngine(lock, opts)
		return e, nil, err
	}
	conversion, err := Convert(ctx, lock, opts.progress("converting "+FileName))
	if err != nil {
		return nil, nil, err
	}
	e, err := OpenEngine(lock, opts)
	return e, conversion, err
}

// Convert makes the engine's file of the state.db in the directory that lock
// holds, once: every key that is there with its value, create and mod revision,
// at the same revision of the store, with everything before it compacted. The old
// file stays as state.db.converted. With nothing to convert it answers nil.
//
// A stop at any point leaves a directory in which the next call begins again or
// is done: the new file gets its name in one step, after all of it is durable, and
// the old one is renamed after that. progress may be nil.
func Convert(ctx context.Context, lock *Lock, progress Progress) (*Conversion, error) {
	return convert(ctx, lock.dir, progress, func(string) {})
}

// convert says what it has done so far to at, for a test to stop there.
func convert(ctx context.Context, dir string, progress Progress, at func(string)) (*Conversion, error) {
	begin := time.Now()
	from, to := filepath.Join(dir, FileName), filepath.Join(dir, EngineFile)
	fresh := to + ".converting"
	// Left by a power cut: they were not finished, or not wanted any more.
	for _, name := range []string{fresh, to + ".importing", to + ".restoring", to + ".salvaging"} {
		if err := removeFile(name); err != nil {
			return nil, fmt.Errorf("convert database: %w", err)
		}
	}
	old, err := os.Stat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("convert database: %w", err)
	}
	if old.Size() == 0 && !hasLog(from) {
		return nil, nil // made by a start that did not get any further
	}
	converted, err := exists(to)
	if err != nil {
		return nil, fmt.Errorf("convert database: %w", err)
	}
	if !converted && hasLog(to) {
		return nil, fmt.Errorf("%w: %s is missing, but its log is there (restore a backup)", ErrCorrupt, to)
	}
	if converted {
		return nil, finishConversion(ctx, from, to)
	}

	c := &Conversion{From: from, To: to}
	own := func(body func(*connection) error) error { return ownTable(from, body) }
	if err := c.build(ctx, fresh, own, progress, at); err != nil {
		return nil, fmt.Errorf("convert database %s: %w", from, err)
	}
	at("filled")
	if err := os.Rename(fresh, to); err != nil {
		return nil, fmt.Errorf("convert database: %w", err)
	}
	at("renamed")
	if err := SyncDir(dir); err != nil {
		return nil, err
	}
	at("synced")
	if c.Kept, err = setAside(from, ConvertedSuffix); err != nil {
		return nil, err
	}
	at("kept")
	c.Took = time.Since(begin)
	return c, nil
}

// build makes the new file of the table that source opens, which it may do again
// from the beginning.
func (c *Conversion) build(ctx context.Context, fresh string, source func(func(*connection) error) error, progress Progress, at func(string)) (err error) {
	var b *builder
	defer func() {
		if err != nil && b != nil {
			b.abandon()
		}
	}()
	err = source(func(table *connection) error {
		if b != nil {
			b.abandon()
		}
		var err error
		if b, err = newBuilder(fresh); err != nil {
			return err
		}
		at("made")
		t, err := readKineTable(ctx, table, c.From, progress)
		if err != nil {
			return err
		}
		at("read")
		// Older history stays behind: whoever asks for it is told so.
		c.Revision = max(1, t.revision)
		metas := []meta{{"revision", c.Revision}, {"compact_revision", t.revision}, {"replaced_revision", t.revision}}
		for _, m := range metas {
			if err := b.exec(metaSQL, m.name, m.value); err != nil {
				return err
			}
		}
		c.Keys, c.Leases, err = t.writeTo(ctx, table, b, progress)
		return err
	})
	if err != nil {
		return err
	}
	at("closed")
	return b.finish()
}

// ownTable opens the state.db of a directory whose lock is ours. It closes it in
// order, which leaves all of it in one file.
func ownTable(path string, body func(*connection) error) error {
	c, err := (&disk{path: path}).connect(url.Values{"_pragma": {"synchronous(FULL)", "busy_timeout(10000)"}})
	if err != nil {
		return explainSQL(path, err)
	}
	err = body(c)
	if e := c.close(); err == nil && e != nil {
		err = explainSQL(path, e)
	}
	if err != nil {
		return err
	}
	return wholeFile(path)
}

// finishConversion renames the old database if the new one was made from it.
func finishConversion(ctx context.Context, from, to string) error {
	var replaced int64
	err := viewEngine(to, func(c *connection) error {
		metas, err := c.metas()
		replaced = metas["replaced_revision"]
		return err
	})
	if err != nil {
		return err
	}
	var t kineTable
	err = ownTable(from, func(c *connection) error {
		tables, err := c.number(`SELECT count(*) FROM sqlite_master WHERE name = 'kine'`)
		if err != nil || tables == 0 {
			return err
		}
		t.path = from
		return t.readRevisions(c)
	})
	if err != nil {
		return fmt.Errorf("convert database %s: %w", from, err)
	}
	if t.revision != replaced {
		return fmt.Errorf("%w: %s was not made from %s: move away the one that you do not want, with its -wal", ErrTwoStores, to, from)
	}
	_, err = setAside(from, ConvertedSuffix)
	return err
}

// setAside renames a database that is whole in one file and that nobody has open;
// never over another file. It answers the new name.
func setAside(path, suffix string) (string, error) {
	if err := wholeFile(path); err != nil {
		return "", err
	}
	name, err := unusedName(path + suffix)
	if err != nil {
		return "", err
	}
	if err := os.Rename(path, name); err != nil {
		return "", fmt.Errorf("keep old database: %w", err)
	}
	return name, SyncDir(filepath.Dir(path))
}

// unusedName is name, or name with a number.
func unusedName(name string) (string, error) {
	for i := 1; ; i++ {
		candidate := name
		if i > 1 {
			candidate = fmt.Sprintf("%s.%d", name, i)
		}
		if taken, err := exists(candidate); err != nil || !taken {
			return candidate, err
		}
	}
}

// Import makes the engine's file, in the directory that lock holds, of a state.db
// of k3s or kine that lies elsewhere; see [Convert] for what it keeps. The file is
// only read, with its log, and may be in use. A directory that has data is
// [ErrNotEmpty].
func Import(ctx context.Context, lock *Lock, file string, progress Progress) (*Conversion, error) {
	begin := time.Now()
	to := filepath.Join(lock.dir, EngineFile)
	if err := makeRoom(lock, to); err != nil {
		return nil, err
	}
	fresh := to + ".importing"
	c := &Conversion{From: file, To: to}
	source := func(body func(*connection) error) error { return viewFile(file, body) }
	if err := c.build(ctx, fresh, source, progress, func(string) {}); err != nil {
		return nil, fmt.Errorf("import %s: %w", file, err)
	}
	if err := os.Rename(fresh, to); err != nil {
		return nil, fmt.Errorf("import %s: %w", file, err)
	}
	c.Took = time.Since(begin)
	return c, SyncDir(lock.dir)
}

// CopyTable writes a state.db of k3s or kine, as of one moment, to the file to, which
// must not exist. The source is only read, with its log, and may be in use.
func CopyTable(ctx context.Context, file, to string) error {
	err := viewFile(file, func(c *connection) error {
		// A transaction cannot be vacuumed, and VACUUM INTO is one by itself.
		if err := c.exec("COMMIT"); err != nil {
			return explainSQL(file, err)
		}
		if err := removeFile(to); err != nil { // of a read that did not count
			return err
		}
		return c.execContext(ctx, file, "VACUUM INTO ?", to)
	})
	if err != nil {
		return fmt.Errorf("copy %s: %w", file, err)
	}
	return nil
}

// makeRoom checks that there is nothing in a directory that an import would
// replace: only an engine's file in which nothing was ever written.
func makeRoom(lock *Lock, to string) error {
	own := filepath.Join(lock.dir, FileName)
	if info, err := os.Stat(own); err == nil && (info.Size() > 0 || hasLog(own)) {
		return fmt.Errorf("%w: %s, which the next start of the server converts (move it away to import another)", ErrNotEmpty, own)
	}
	there, err := exists(to)
	if err != nil {
		return err
	}
	if !there {
		if hasLog(to) {
			return fmt.Errorf("%w: %s is missing, but its log is there (restore a backup)", ErrCorrupt, to)
		}
		return nil
	}
	var rows int64
	var metas map[string]int64
	err = viewEngine(to, func(c *connection) (err error) {
		if metas, err = c.metas(); err != nil {
			return explainSQL(to, err)
		}
		rows, err = c.number(`SELECT count(*) FROM log`)
		return err
	})
	if err != nil {
		return err
	}
	if rows > 0 || metas["revision"] > 1 {
		return fmt.Errorf("%w: %s (choose another --data-dir, or move the file away)", ErrNotEmpty, to)
	}
	// Its log must not be taken for that of the file that comes in its place.
	e, err := OpenEngine(lock, Options{BallastBytes: -1})
	if err != nil {
		return err
	}
	if err := e.Close(); err != nil {
		return err
	}
	return wholeFile(to)
}
