package sqlitefile

import (
	"database/sql/driver"
	"fmt"
	"maps"
	"os"
)

// Checkpoint copies the WAL back into the database once the WAL has grown to its target. On a
// full disk a small part of the target is enough: SQLite overwrites what is copied back, and
// needs no new space. idle says that no other commit is waiting.
func (f *File) Checkpoint(full, idle bool) error {
	if f.wal >= f.walTarget && !full {
		if err := f.measureWAL(); err != nil {
			return err
		}
	}
	if f.wal < f.walTarget && !(full && f.wal >= f.walTarget/16) {
		if idle && !f.sealed {
			return f.seal()
		}
		return nil
	}
	return f.WriteBack()
}

// measureWAL replaces the estimate of the WAL that is not copied back with its size. Commits of
// few rows take a fifth of their estimate, and each checkpoint writes every page again that has
// changed since the last one.
func (f *File) measureWAL() error {
	_, err := f.checkpoint(`PRAGMA wal_checkpoint(NOOP)`)
	return err
}

// WriteBack is a checkpoint after which the database without its WAL says "open" (see
// stopState). It commits "open" and copies the WAL back up to that commit. The next commit says
// "sealed" again, in the WAL only. So the database alone says "sealed" only if nothing is
// missing in it.
//
// The copy is PASSIVE: it waits for nobody. A reader that is older than the commit of "open"
// would end the copy before it, at "sealed". So that commit waits for the statements of this
// engine's readers, and there is no checkpoint during a long read. SQLite restarts the WAL with
// the next commit that finds everything copied and no reader in it. If readers prevent that
// until the limit is near, transaction takes the gate.
func (f *File) WriteBack() error {
	f.gate.Lock()
	if f.long > 0 {
		f.gate.Unlock()
		return nil
	}
	return f.writeBackAlone(f.gate.Unlock)
}

// writeBackAlone is WriteBack for a caller that holds the gate. It calls release once readers
// may begin.
func (f *File) writeBackAlone(release func()) error {
	err := f.setState(f.openState, nil)
	if IsFull(err) {
		// Not even a page can be appended. Once the WAL is copied back as it is, with
		// the gate held, the commit of "open" restarts it in the space that it has.
		// Until "open" is copied back too, the database itself may say "sealed".
		f.mustOpen = true
		if err = f.copyBack(); err == nil {
			err = f.setState(f.openState, nil)
		}
	}
	if err != nil {
		release()
		return err
	}
	f.sealed = false
	release()
	err = f.copyBack()
	if err == nil {
		f.mustOpen = false
	}
	return err
}

// seal commits "sealed" when no other commit does.
func (f *File) seal() error { return f.transaction(0, func(*Connection) error { return nil }) }

// setState writes a stopState, and more rows of the meta table, in a transaction of its own.
func (f *File) setState(s stopState, more Metas) error {
	if err := f.broken("state"); err != nil {
		return err
	}
	return f.commitPages(metaPages, func(c *Connection) error {
		if err := c.SetMetas(more); err != nil {
			return err
		}
		return c.setMeta("clean", int64(s))
	})
}

// MarkInUse writes changed rows of the meta table, and marks the database as not closed in
// order. The mark goes into the database itself, not only into its WAL: if the WAL is missing at
// the next start, that start notices. The committer seals the database next.
func (f *File) MarkInUse(changed Metas) error {
	metas, err := f.Metas()
	if err != nil {
		return err
	}
	with := Metas{}
	if metas.Closed() {
		with = newRun(metas["run"])
	}
	maps.Copy(with, changed)
	err = f.setState(f.openState, with)
	if err == nil && f.relaxed {
		err = f.Sync()
	}
	if err == nil {
		err = f.copyBack()
	}
	if err != nil {
		return Explain(f.path, err)
	}
	return nil
}

// copyBack is one passive checkpoint.
func (f *File) copyBack() error {
	if err := f.broken("checkpoint"); err != nil {
		return err
	}
	bytes, err := f.checkpoint(`PRAGMA wal_checkpoint(PASSIVE)`)
	if err == nil {
		f.restartWAL = bytes > f.walTarget+(walLimit-f.walTarget)/4
	}
	return err
}

// checkpoint runs a checkpoint, and returns the size of the WAL. It sets f.wal to the part that is
// not copied back.
func (f *File) checkpoint(pragma string) (bytes int64, err error) {
	var busy, frames, copied int64
	err = f.writer.Query(pragma, func(row []driver.Value) error {
		busy, _ = row[0].(int64)
		frames, _ = row[1].(int64)
		copied, _ = row[2].(int64)
		return nil
	})
	if err != nil {
		return 0, err
	}
	if busy != 0 { // another program is checkpointing, where it can
		return 0, BusyWith(f.path)
	}
	const frame = pageSize + 24
	f.wal = (frames - copied) * frame
	return frames * frame, nil
}

// WALBytes returns the size of the WAL's file.
func (f *File) WALBytes() int64 { return Size(f.path + "-wal") }

// Sync makes the commits so far durable. SQLite keeps no locks on the WAL's file, so closing this
// descriptor of it drops none.
//
// The outcome of a failed sync is unknown, even where the system's error says that the disk is
// full. So the error is never [IsFull].
func (f *File) Sync() error {
	if err := f.syncWAL(); err != nil {
		return fmt.Errorf("sync %s-wal: %v", f.path, err)
	}
	return nil
}

func (f *File) syncWAL() error {
	if err := f.broken("sync"); err != nil {
		return err
	}
	if f.walFile == nil {
		wal, err := os.OpenFile(f.path+"-wal", os.O_RDWR, 0)
		if err != nil {
			return err
		}
		f.walFile = wal
		if err := f.unmoved(); err != nil {
			return err
		}
	}
	return syncData(f.walFile)
}

// How many pages one call of Vacuum frees, and how many on a full disk, where the WAL must not
// grow.
const (
	vacuumPages = 256
	vacuumSQL   = `PRAGMA incremental_vacuum(256)`
	fullPages   = 16
	fullSQL     = `PRAGMA incremental_vacuum(16)`
)

// Vacuum returns free pages to the file system. It reports whether it did, and whether there are
// more to return. The file becomes shorter with the next checkpoint. A quarter of it may stay free,
// so that new writes do not make it grow again. On a full disk none may.
func (f *File) Vacuum(full bool) (freed, more bool, err error) {
	free, err := f.writer.Number(`PRAGMA freelist_count`)
	if err != nil {
		return false, false, err
	}
	pages, err := f.writer.Number(`PRAGMA page_count`)
	if err != nil {
		return false, false, err
	}
	if free == 0 || !full && (free < 32 || free < pages/4) {
		return false, false, nil
	}
	n, query := int64(vacuumPages), vacuumSQL
	if full {
		n, query = fullPages, fullSQL
	}
	f.wal += n * 3 * pageSize
	if err := f.writer.Exec(query); err != nil {
		return false, false, err
	}
	return true, free > n, nil
}
