//go:build linux

package durability

import (
	"bufio"
	"bytes"
	encoding "encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
)

// The log of qemu's block driver blklogwrites: a sector that says how many entries there are, then the entries, each a
// sector and, if it is a write, the sectors that were written. It is the format of Linux' dm-log-writes
// (Documentation/admin-guide/device-mapper/log-writes.rst), little-endian.
const (
	logMagic   = 0x6a736677736872
	logVersion = 1
	logSector  = 512

	flagFlush = 1 << 0
	flagFUA   = 1 << 1
)

// A diskWrite is what was written to a disk in one request.
type diskWrite struct {
	offset int64
	data   []byte
}

// readLog reads what a disk was asked to do, to the end of the log, which is where the machine was cut off. So many of the writes were flushed.
func readLog(r io.Reader) (writes []diskWrite, flushed int, err error) {
	in := bufio.NewReaderSize(r, 1<<20)
	sector := make([]byte, logSector)
	if _, err := io.ReadFull(in, sector); errors.Is(err, io.EOF) || bytes.Count(sector, []byte{0}) == logSector {
		return nil, 0, nil // cut off before anything was done
	} else if err != nil {
		return nil, 0, err
	}
	le := encoding.LittleEndian
	if le.Uint64(sector) != logMagic || le.Uint64(sector[8:]) != logVersion || le.Uint32(sector[24:]) != logSector {
		return nil, 0, fmt.Errorf("the head of the log is %x", sector[:28])
	}
	entries := le.Uint64(sector[16:])
	for n := range entries {
		if _, err := io.ReadFull(in, sector); err != nil {
			return nil, 0, fmt.Errorf("entry %d of %d: %w", n, entries, err)
		}
		offset, size, flags := int64(le.Uint64(sector))*logSector, int(le.Uint64(sector[8:]))*logSector, le.Uint64(sector[16:])
		if flags&^(flagFlush|flagFUA) != 0 || size == 0 && flags == 0 {
			return nil, 0, fmt.Errorf("entry %d of %d has %d bytes and flags %#x: the disk is to have no discard", n, entries, size, flags)
		}
		if size > 0 {
			w := diskWrite{offset, make([]byte, size)}
			if _, err := io.ReadFull(in, w.data); err != nil {
				return nil, 0, fmt.Errorf("entry %d of %d: %w", n, entries, err)
			}
			writes = append(writes, w)
		}
		if flags&flagFlush != 0 {
			flushed = len(writes)
		}
	}
	return writes, flushed, nil
}

// cutPower makes a disk's image, which is as it was when the log began, what a disk with a cache of its own has when the power
// goes: all that was flushed, and of the rest any part. A write that was under way may be there by half, to a sector's edge.
func cutPower(image, log string) (string, error) {
	in, err := os.Open(log)
	if err != nil {
		return "", err
	}
	defer in.Close()
	writes, flushed, err := readLog(in)
	if err != nil {
		return "", fmt.Errorf("%s: %w", log, err)
	}
	disk, err := os.OpenFile(image, os.O_WRONLY, 0)
	if err != nil {
		return "", err
	}
	lost := 0
	for n, w := range writes {
		data := w.data
		if n >= flushed {
			switch rand.IntN(4) {
			case 0, 1:
				lost++
				continue
			case 2:
				data = data[:rand.IntN(len(data)/logSector+1)*logSector]
			}
		}
		if _, err := disk.WriteAt(data, w.offset); err != nil {
			return "", errors.Join(err, disk.Close())
		}
	}
	return fmt.Sprintf("%d disk writes, %d of them not flushed, %d of those lost", len(writes), len(writes)-flushed, lost), disk.Close()
}
