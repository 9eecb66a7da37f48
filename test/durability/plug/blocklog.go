package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
)

// The log of qemu's block driver blklogwrites: a sector that says how many
// entries there are, then the entries, each a sector and, if it is a write, the
// sectors that were written. It is the format of Linux' dm-log-writes
// (Documentation/admin-guide/device-mapper/log-writes.rst), little-endian.
const (
	logMagic   = 0x6a736677736872
	logVersion = 1
	logSector  = 512

	flagFlush   = 1 << 0
	flagFUA     = 1 << 1
	flagDiscard = 1 << 2
)

// aWrite is what was written to a disk in one request.
type aWrite struct {
	offset int64
	data   []byte
}

// blockLog is what a disk was asked to do, in the order in which it was done.
type blockLog struct {
	writes  []aWrite
	flushed int // so many of the writes were complete before the last flush was
}

// readLog reads a log to its end, which is where the machine was cut off.
func readLog(r io.Reader) (*blockLog, error) {
	in := bufio.NewReaderSize(r, 1<<20)
	sector := make([]byte, logSector)
	if _, err := io.ReadFull(in, sector); errors.Is(err, io.EOF) || bytes.Count(sector, []byte{0}) == logSector {
		return &blockLog{}, nil // cut off before anything was done
	} else if err != nil {
		return nil, fmt.Errorf("read the head of the log: %w", err)
	}
	le := binary.LittleEndian
	if magic, version := le.Uint64(sector), le.Uint64(sector[8:]); magic != logMagic || version != logVersion {
		return nil, fmt.Errorf("the head of the log has magic %#x and version %d, want %#x and %d", magic, version, logMagic, logVersion)
	}
	if size := le.Uint32(sector[24:]); size != logSector {
		return nil, fmt.Errorf("the log has sectors of %d bytes, want %d", size, logSector)
	}
	log, entries := &blockLog{}, le.Uint64(sector[16:])
	for n := range entries {
		_, err := io.ReadFull(in, sector)
		if err == nil {
			offset, size, flags := int64(le.Uint64(sector))*logSector, int(le.Uint64(sector[8:]))*logSector, le.Uint64(sector[16:])
			switch {
			case flags&^(flagFlush|flagFUA|flagDiscard) != 0 || flags&flagDiscard != 0:
				return nil, fmt.Errorf("entry %d of the log has flags %#x: the disk is to have no discard", n, flags)
			case size == 0 && flags == 0:
				return nil, fmt.Errorf("entry %d of %d of the log is empty", n, entries)
			case size > 0:
				w := aWrite{offset, make([]byte, size)}
				if _, err = io.ReadFull(in, w.data); err == nil {
					log.writes = append(log.writes, w)
				}
			}
			if flags&flagFlush != 0 {
				log.flushed = len(log.writes)
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("the log ends in entry %d of %d", n, entries)
		} else if err != nil {
			return nil, err
		}
	}
	return log, nil
}

// cut writes to disk, which is as it was when the log began, what a disk with a
// cache of its own has when the power goes: all that was flushed, and of the rest
// any part. A write that was under way may be there by half, to a sector's edge.
func (l *blockLog) cut(disk io.WriterAt, random *rand.Rand) (lost int, err error) {
	for n, w := range l.writes {
		data := w.data
		if n >= l.flushed {
			switch random.IntN(4) {
			case 0, 1:
				lost++
				continue
			case 2:
				data = data[:random.IntN(len(data)/logSector+1)*logSector]
			}
		}
		if _, err := disk.WriteAt(data, w.offset); err != nil {
			return lost, err
		}
	}
	return lost, nil
}

// cutPower makes a disk's image, as it was when log began, into what is left of it.
func cutPower(image, log string, random *rand.Rand) (writes, unflushed, lost int, err error) {
	in, err := os.Open(log)
	if err != nil {
		return 0, 0, 0, err
	}
	defer in.Close()
	l, err := readLog(in)
	if err != nil {
		return 0, 0, 0, fmt.Errorf("%s: %w", log, err)
	}
	disk, err := os.OpenFile(image, os.O_WRONLY, 0)
	if err != nil {
		return 0, 0, 0, err
	}
	lost, err = l.cut(disk, random)
	return len(l.writes), len(l.writes) - l.flushed, lost, errors.Join(err, disk.Close())
}
