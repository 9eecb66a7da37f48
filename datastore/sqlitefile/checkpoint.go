package sqlitefile

import (
	"database/sql/driver"
	"os"
)

// Checkpoint copies the log into the database once it has grown to its target,
// or to a small part of that when the disk is full: what is copied back can be
// written over, and needs no new space. When idle, nothing else is about to be
// committed.
func (f *File) Checkpoint(full, idle bool) error {
	if f.wal < walTarget && !(full && f.wal >= walTarget/16) {
		if idle && f.sealing && !f.sealed {
			return f.seal()
		}
		return nil
	}
	return f.WriteBack()
}

// WriteBack is a checkpoint that keeps a promise: the database by itself says "sealed"
// (see stopState) only if nothing is missing in it. It commits "open", and copies the log
// back up to there; the next commit says "sealed" again, in the log only.
//
// The copy is PASSIVE: it waits for nobody. No reader may be older than the commit of
// "open", or the copy could end before it, at "sealed": so that commit waits for the
// statements of our readers, and while a long read is under way there is no checkpoint.
// The log begins anew with the next commit that finds everything copied and no reader in
// it; should readers prevent that until the limit is near, transaction takes the gate.
func (f *File) WriteBack() error {
	f.gate.Lock()
	if f.long > 0 {
		f.gate.Unlock()
		return nil
	}
	return f.writeBackAlone(f.gate.Unlock)
}

// writeBackAlone is WriteBack with the gate held. It calls release once readers may come.
func (f *File) writeBackAlone(release func()) error {
	if f.sealing {
		err := f.setState(f.openState, nil)
		if IsFull(err) {
			// Not even a page can be appended. Copied back as it is, and with the gate
			// held, the log begins anew with that commit, in the space that it has. Until
			// "open" has been copied back too, the database itself may say "sealed".
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
	}
	release()
	err := f.copyBack()
	if err == nil {
		f.mustOpen = false
	}
	return err
}

// seal commits "sealed", if nothing else does it.
func (f *File) seal() error { return f.transaction(0, func(*Connection) error { return nil }) }

// setState records a stopState, and more rows of the meta table, in a transaction of its own.
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

// MarkInUse records, with what else has changed, that there has been no clean stop: in the
// database itself and not only in its WAL, so that a WAL that is missing then is noticed. The
// committer's first work is to seal that.
func (f *File) MarkInUse(changed Metas) error {
	err := f.setState(f.openState, changed)
	if err == nil && f.relaxed {
		err = f.Sync()
	}
	if err == nil {
		err = f.patiently(f.patience, f.copyBack)
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
	var busy, frames, copied int64
	err := f.writer.Query(`PRAGMA wal_checkpoint(PASSIVE)`, func(row []driver.Value) error {
		busy, _ = row[0].(int64)
		frames, _ = row[1].(int64)
		copied, _ = row[2].(int64)
		return nil
	})
	if err != nil {
		return err
	}
	if busy != 0 { // another program's checkpoint: not where the database is ours alone
		return BusyWith(f.path)
	}
	const frame = pageSize + 24
	f.restartWAL = frames*frame > walTarget+(walLimit-walTarget)/4
	f.wal = (frames - copied) * frame
	return nil
}

// WALBytes is the size of the log's file.
func (f *File) WALBytes() int64 { return Size(f.path + "-wal") }

// Sync makes the commits of a relaxed engine durable. The log's file carries
// none of SQLite's locks, so a descriptor of our own does no harm to them.
func (f *File) Sync() error {
	if err := f.broken("sync"); err != nil {
		return err
	}
	if f.walFile == nil {
		wal, err := os.OpenFile(f.path+"-wal", os.O_RDWR, 0)
		if err != nil {
			return err
		}
		f.walFile = wal
	}
	return f.walFile.Sync()
}

// How many pages a slice gives back, and how many when the disk is full and the
// log must not grow.
const (
	vacuumPages = 256
	vacuumSQL   = `PRAGMA incremental_vacuum(256)`
	fullPages   = 16
	fullSQL     = `PRAGMA incremental_vacuum(16)`
)

// Vacuum gives free pages back to the file system and says whether more should
// go. A quarter of the file may stay free, for new writes to use without the file
// growing again; when the disk is full, nothing may.
func (f *File) Vacuum(full bool) (more bool, err error) {
	free, err := f.writer.Number(`PRAGMA freelist_count`)
	if err != nil {
		return false, err
	}
	pages, err := f.writer.Number(`PRAGMA page_count`)
	if err != nil {
		return false, err
	}
	if free == 0 || !full && (free < 32 || free < pages/4) {
		return false, nil
	}
	n, query := int64(vacuumPages), vacuumSQL
	if full {
		n, query = fullPages, fullSQL
	}
	f.wal += n * 3 * pageSize
	if err := f.writer.Exec(query); err != nil {
		return false, err
	}
	return free > n, nil
}
