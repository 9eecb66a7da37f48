package main

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"
)

// entry is one entry of a log, with the data behind it.
func entry(sector, flags uint64, data string) []byte {
	head := make([]byte, logSector)
	le := binary.LittleEndian
	le.PutUint64(head, sector)
	le.PutUint64(head[8:], uint64(len(data)/logSector))
	le.PutUint64(head[16:], flags)
	return append(head, data...)
}

func logOf(entries ...[]byte) []byte {
	head := make([]byte, logSector)
	le := binary.LittleEndian
	le.PutUint64(head, logMagic)
	le.PutUint64(head[8:], logVersion)
	le.PutUint64(head[16:], uint64(len(entries)))
	le.PutUint32(head[24:], logSector)
	return append(head, bytes.Join(entries, nil)...)
}

// memoryDisk is one in memory.
type memoryDisk []byte

func (d memoryDisk) WriteAt(p []byte, at int64) (int, error) { return copy(d[at:], p), nil }

func TestFlushedWritesStayAndOthersMayNot(t *testing.T) {
	a, b, c := strings.Repeat("a", logSector), strings.Repeat("b", 2*logSector), strings.Repeat("c", 2*logSector)
	text := logOf(entry(0, 0, a), entry(1, 0, b), entry(0, flagFlush, ""), entry(2, 0, c))
	seen := map[string]int{}
	for seed := range uint64(200) {
		log, err := readLog(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if len(log.writes) != 3 || log.flushed != 2 {
			t.Fatalf("got %d writes, %d of them flushed, want 3 and 2", len(log.writes), log.flushed)
		}
		disk := memoryDisk(strings.Repeat("-", 4*logSector))
		if _, err := log.cut(disk, rand.New(rand.NewPCG(seed, 0))); err != nil {
			t.Fatal(err)
		}
		seen[string(disk)]++
	}
	for what, want := range map[string]string{"lost": a + b + strings.Repeat("-", logSector), "kept": a + b[:logSector] + c, "torn": a + b[:logSector] + c[:logSector] + strings.Repeat("-", logSector)} {
		if seen[want] == 0 {
			t.Errorf("the last write was never %s", what)
		}
		delete(seen, want)
	}
	for disk, n := range seen {
		t.Errorf("%d times the disk was %q", n, disk)
	}
}

func TestLogsThatAreNone(t *testing.T) {
	for name, text := range map[string][]byte{"nothing": nil, "cut off before its head": make([]byte, 2*logSector)} {
		if log, err := readLog(bytes.NewReader(text)); err != nil || len(log.writes) != 0 {
			t.Errorf("%s: got %v, want an empty log", name, err)
		}
	}
	whole := logOf(entry(1, 0, strings.Repeat("x", logSector)), entry(0, flagFlush, ""))
	for name, text := range map[string][]byte{
		"another magic": append([]byte{1}, whole[1:]...),
		"cut off":       whole[:3*logSector],
		"a discard":     logOf(entry(1, flagDiscard, "")),
		"a hole":        logOf(entry(0, 0, ""), entry(0, flagFlush, "")),
	} {
		if _, err := readLog(bytes.NewReader(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
