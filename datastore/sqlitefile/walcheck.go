package sqlitefile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/karve-k8s/karve/datastore/directory"
)

// checkStopped compares the state in a database, read without its WAL, with the WAL that is there. The
// error is [ErrCorrupt] if commits are missing.
func checkStopped(path string, state stopState) error {
	if state.closed() {
		return nil
	}
	if !HasWAL(path) {
		if state.sealed() {
			return nil // another program has copied the WAL back and removed it
		}
		return fmt.Errorf("%w: %s was not closed in order, and its WAL %s-wal, which has the newest changes, is missing or empty; a kill during a checkpoint looks the same if another program then copied the WAL back, so try salvage first (%s)", ErrCorrupt, path, path, Remedy)
	}
	return checkWAL(path, state.ordered())
}

// CheckStop checks the WAL of a database that nobody has open and that was not closed in order, for
// damage that a start would refuse and that SQLite does not see.
func CheckStop(path string, metas Metas) error {
	state := metas.state()
	if state.closed() || inUse(path) {
		return nil
	}
	err := checkStopped(path, state)
	if err != nil && inUse(path) {
		return nil // a server was starting, and the WAL was not complete yet
	}
	return err
}

// inUse reports whether a process holds, or may hold, the lock of the directory that a database is in.
func inUse(path string) bool {
	_, held, err := directory.Holder(filepath.Dir(path))
	return held || err != nil
}

// checkWAL checks the WAL that an unclean stop has left, before SQLite reads it
// (https://sqlite.org/fileformat2.html#walformat).
//
// SQLite takes the first bad frame for the end of the WAL, as it has to after a torn write, and
// silently drops every commit after it. But where commits are ordered, each one is on the disk before
// the next is written, so only the last transaction can be torn. A bad frame that is followed by the
// frames of a later transaction is damage, and going on would lose acknowledged writes.
func checkWAL(path string, ordered bool) error {
	f, err := os.Open(path + "-wal")
	if err != nil {
		return fmt.Errorf("open WAL of database: %w", err)
	}
	defer f.Close()
	var header [32]byte
	if _, err := io.ReadFull(f, header[:]); err != nil {
		return fmt.Errorf("%w: %s was not closed in order, and its WAL %s-wal is cut off (%s)", ErrCorrupt, path, path, Remedy)
	}
	if !ordered {
		return nil
	}
	bad, err := walDamage(f, header[:])
	if err != nil {
		return fmt.Errorf("read WAL of database: %w", err)
	}
	if bad > 0 {
		return fmt.Errorf("%w: %s-wal: frame %d has a bad checksum, and later commits follow it (%s)", ErrCorrupt, path, bad, Remedy)
	}
	return nil
}

// walDamage is the number of the first bad frame, counted from 1, if there are
// commits after its own transaction; otherwise 0.
func walDamage(r io.Reader, header []byte) (int, error) {
	be := binary.BigEndian
	magic := be.Uint32(header)
	pageSize := int(be.Uint32(header[8:]))
	if magic&^1 != 0x377f0682 || pageSize < 512 || pageSize > 1<<16 {
		return 1, nil
	}
	var order binary.ByteOrder = binary.LittleEndian
	if magic&1 == 1 {
		order = be
	}
	sum := walSum{}.add(order, header[:24])
	if sum != writtenSum(header[24:]) {
		return 1, nil
	}
	salt := string(header[16:24])

	// A frame's sum continues the sum of the frame before it. After a bad frame, that
	// is the sum in its header, or, if the damage is in that sum, the one of its content.
	before := []walSum{sum}
	frame := make([]byte, 24+pageSize)
	bad, commits := 0, 0
	for n := 1; ; n++ {
		if _, err := io.ReadFull(r, frame); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		} else if err != nil {
			return 0, err
		}
		ours, previous := string(frame[8:16]) == salt, before
		before = []walSum{writtenSum(frame[16:])}
		if !ours && bad > 0 {
			continue // an earlier generation of the WAL left it, or it is garbage
		}
		continues := continuesOne(order, previous, frame[:8], frame)
		switch {
		case ours && continues:
			if bad > 0 && isCommit(frame) {
				commits++
			}
		case bad == 0:
			bad = n
			if badCommit(order, previous, frame, ours, continues) {
				commits++
			}
			for _, sum := range previous {
				before = append(before, sum.add(order, frame[:8]).add(order, frame[24:]))
			}
		}
	}
	if commits >= 2 {
		return bad, nil
	}
	return 0, nil
}

// badCommit reports whether a bad frame is the last one of a transaction, as far as its damage
// lets it show. ours is whether it has the WAL's salt, and continues whether its sum is right.
func badCommit(order binary.ByteOrder, before []walSum, frame []byte, ours, continues bool) bool {
	switch {
	case continues:
		// Only the salt is damaged: a frame of an earlier generation does not continue this
		// generation's sum.
		return isCommit(frame)
	case !ours:
		return false // This is most likely the end. A damaged frame shows by what follows.
	case isCommit(frame):
		return true
	}
	// A commit frame has the size of the database in its header. Damage to one bit of a size that
	// is a power of two makes it zero.
	var head [8]byte
	copy(head[:], frame)
	for bit := range 32 {
		binary.BigEndian.PutUint32(head[4:], 1<<bit)
		if continuesOne(order, before, head[:], frame) {
			return true
		}
	}
	return false
}

// isCommit reports whether a frame is marked as the last one of a transaction.
func isCommit(frame []byte) bool { return binary.BigEndian.Uint32(frame[4:]) != 0 }

// continuesOne reports whether the sum in a frame's header continues one of before, when the
// frame begins with head.
func continuesOne(order binary.ByteOrder, before []walSum, head, frame []byte) bool {
	return slices.ContainsFunc(before, func(sum walSum) bool {
		return sum.add(order, head).add(order, frame[24:]) == writtenSum(frame[16:])
	})
}

// walSum is SQLite's checksum of a WAL.
type walSum struct{ s1, s2 uint32 }

// writtenSum is the sum at the beginning of b.
func writtenSum(b []byte) walSum {
	return walSum{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])}
}

// add returns the sum, continued over b.
func (s walSum) add(order binary.ByteOrder, b []byte) walSum {
	for i := 0; i+8 <= len(b); i += 8 {
		s.s1 += order.Uint32(b[i:]) + s.s2
		s.s2 += order.Uint32(b[i+4:]) + s.s1
	}
	return s
}
