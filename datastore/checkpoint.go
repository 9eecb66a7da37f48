package datastore

import (
	"database/sql/driver"
	"os"
)

// checkpoint copies the log into the database once it has grown to its target,
// or to a small part of that when the disk is full: what is copied back can be
// written over, and needs no new space.
//
// PASSIVE only: it waits for nobody. The log begins anew with the next commit
// that finds everything copied and no reader in it; should readers prevent that
// until the limit is near, that commit first waits for them at the gate.
func (d *disk) checkpoint(full bool) error {
	if d.wal < walTarget && !(full && d.wal >= walTarget/16) {
		return nil
	}
	return d.copyBack()
}

// copyBack is one passive checkpoint.
func (d *disk) copyBack() error {
	if err := d.broken("checkpoint"); err != nil {
		return err
	}
	var frames, copied int64
	err := d.writer.query(`PRAGMA wal_checkpoint(PASSIVE)`, func(row []driver.Value) error {
		frames, _ = row[1].(int64)
		copied, _ = row[2].(int64)
		return nil
	})
	if err != nil {
		return err
	}
	const frame = pageSize + 24
	d.frames = frames
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
	if err := d.reserveIndex(n * 3); err != nil {
		return false, err
	}
	d.wal += n * 3 * pageSize
	if err := d.writer.exec(query); err != nil {
		return false, err
	}
	return free > n, nil
}
