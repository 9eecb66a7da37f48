package datastore

import (
	"database/sql/driver"
	"os"
)

// checkpoint copies the log into the database once it has grown to its target,
// or to a small part of that when the disk is full: what is copied back can be
// written over, and needs no new space. When idle, nothing else is about to be
// committed.
func (d *disk) checkpoint(full, idle bool) error {
	if d.wal < walTarget && !(full && d.wal >= walTarget/16) {
		if idle && d.sealing && !d.sealed {
			return d.seal()
		}
		return nil
	}
	return d.writeBack()
}

// writeBack is a checkpoint that keeps a promise: the database by itself says "sealed"
// (see stopState) only if nothing is missing in it. It commits "open", and copies the log
// back up to there; the next commit says "sealed" again, in the log only.
//
// The copy is PASSIVE: it waits for nobody. No reader may be older than the commit of
// "open", or the copy could end before it, at "sealed": so that commit waits for the
// statements of our readers, and while a long read is under way there is no checkpoint.
// The log begins anew with the next commit that finds everything copied and no reader in
// it; should readers prevent that until the limit is near, transaction takes the gate.
func (d *disk) writeBack() error {
	d.gate.Lock()
	if d.long > 0 {
		d.gate.Unlock()
		return nil
	}
	return d.writeBackAlone(d.gate.Unlock)
}

// writeBackAlone is writeBack with the gate held. It calls release once readers may come.
func (d *disk) writeBackAlone(release func()) error {
	if d.sealing {
		err := d.setState(d.openState)
		if isFull(err) {
			// Not even a page can be appended. Copied back as it is, and with the gate
			// held, the log begins anew with that commit, in the space that it has. Until
			// "open" has been copied back too, the database itself may say "sealed".
			d.mustOpen = true
			if err = d.copyBack(); err == nil {
				err = d.setState(d.openState)
			}
		}
		if err != nil {
			release()
			return err
		}
		d.sealed = false
	}
	release()
	err := d.copyBack()
	if err == nil {
		d.mustOpen = false
	}
	return err
}

// seal commits "sealed", if nothing else does it.
func (d *disk) seal() error { return d.transaction(0, func(*connection) error { return nil }) }

// setState records a stopState in a transaction of its own.
func (d *disk) setState(s stopState, more ...meta) error {
	if err := d.broken("state"); err != nil {
		return err
	}
	return d.commitPages(metaPages, func(c *connection) error { return c.setMetas(append(more, s.meta())) })
}

// copyBack is one passive checkpoint.
func (d *disk) copyBack() error {
	if err := d.broken("checkpoint"); err != nil {
		return err
	}
	var busy, frames, copied int64
	err := d.writer.query(`PRAGMA wal_checkpoint(PASSIVE)`, func(row []driver.Value) error {
		busy, _ = row[0].(int64)
		frames, _ = row[1].(int64)
		copied, _ = row[2].(int64)
		return nil
	})
	if err != nil {
		return err
	}
	if busy != 0 { // another program's checkpoint: not where the database is ours alone
		return busyWith(d.path)
	}
	const frame = pageSize + 24
	d.corner = frames*frame > walTarget+(walLimit-walTarget)/4
	d.wal = (frames - copied) * frame
	return nil
}

// walBytes is the size of the log's file.
func (d *disk) walBytes() int64 { return fileBytes(d.path + "-wal") }

func fileBytes(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// sync makes the commits of a relaxed engine durable. The log's file carries
// none of SQLite's locks, so a descriptor of our own does no harm to them.
func (d *disk) sync() error {
	if err := d.broken("sync"); err != nil {
		return err
	}
	if d.walFile == nil {
		f, err := os.OpenFile(d.path+"-wal", os.O_RDWR, 0)
		if err != nil {
			return err
		}
		d.walFile = f
	}
	return d.walFile.Sync()
}

// How many pages a slice gives back, and how many when the disk is full and the
// log must not grow.
const (
	vacuumPages = 256
	vacuumSQL   = `PRAGMA incremental_vacuum(256)`
	fullPages   = 16
	fullSQL     = `PRAGMA incremental_vacuum(16)`
)

// vacuum gives free pages back to the file system and says whether more should
// go. A quarter of the file may stay free, for new writes to use without the file
// growing again; when the disk is full, nothing may.
func (d *disk) vacuum(full bool) (more bool, err error) {
	free, err := d.writer.number(`PRAGMA freelist_count`)
	if err != nil {
		return false, err
	}
	pages, err := d.writer.number(`PRAGMA page_count`)
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
	d.wal += n * 3 * pageSize
	if err := d.writer.exec(query); err != nil {
		return false, err
	}
	return free > n, nil
}
