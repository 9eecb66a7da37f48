package datastore

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A day of an idle node is at most 100 MB of writes to the database and its WAL in mode relaxed. It passes in the time
// of the test: the node renews its lease every 10 s and reports its status every five minutes; one of its Pods crashes
// every five minutes, with two reports and an Event, whose lease expires after an hour; the API server compacts every
// five minutes.
//
// A commit of n pages counts as n+1, because the one before has left a page half full.
func TestDayOfANode(t *testing.T) {
	for _, mode := range []Durability{Full, Relaxed} {
		t.Run(mode.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const hours, megabytes = 6, 100
				day := nodeHours(t, mode, hours) * 24 / hours / 1e6
				t.Logf("%v: %d MB a day", mode, day)
				if mode == Relaxed && day > megabytes {
					t.Errorf("%d MB a day, want at most %d", day, megabytes)
				}
			})
		})
	}
}

// nodeHours returns the bytes that so many hours of a node write, after two other hours.
func nodeHours(t *testing.T, mode Durability, hours int) int64 {
	const lease, status, pod, event = "/registry/leases/kube-node-lease/node", "/registry/minions/node", "/registry/pods/default/pod", "/registry/events/default/pod"
	e, lock := openLocked(t, t.TempDir(), Options{Durability: mode, DeferredPrefix: "/registry/leases/kube-node-lease/"})
	write := func(key string, size int, lease int64) int64 {
		value := fmt.Appendf(nil, "%-*d", size, time.Now().UnixNano())
		resp, err := e.Put(t.Context(), PutRequest{Key: key, Value: value, Lease: lease})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Revision
	}
	for i := range 600 {
		write(fmt.Sprint("/registry/first/", i), 300+i, 0)
	}
	wal := &walCounter{path: e.Path() + "-wal"}
	e.file.OnStep(func(step string) error {
		if step == "committed" {
			return wal.count()
		}
		return nil
	})
	write(lease, 450, 0)
	var before, compacted int64
	const tick, minutes5 = 10 * time.Second, 5 * time.Minute
	for at := time.Duration(0); at < time.Duration(2+hours)*time.Hour; at += tick {
		write(lease, 450, 0)
		switch at % minutes5 {
		case 60 * time.Second:
			write(status, 5200, 0)
		case 120 * time.Second:
			write(pod, 1700, 0)
			l, err := e.Grant(context.Background(), 0, 3660)
			if err != nil {
				t.Fatal(err)
			}
			write(event, 600, l.ID)
			time.Sleep(time.Second)
			write(pod, 1700, 0)
			time.Sleep(tick - time.Second)
			continue
		case 200 * time.Second:
			revision := write("compact_rev_key", 8, 0)
			if compacted > 0 {
				if err := e.Compact(t.Context(), compacted, false); err != nil {
					t.Fatal(err)
				}
			}
			compacted = revision
		}
		if at == 2*time.Hour {
			before = wal.pages.Load()
		}
		time.Sleep(tick)
	}
	written := (wal.pages.Load() - before) * 4096
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	lock.Close()
	return written
}

// walCounter counts the pages of the commits in a WAL, and those that checkpoints copy from it.
type walCounter struct {
	path   string
	salts  [8]byte
	frames int64 // that were read since the WAL was restarted
	copied map[uint32]bool
	pages  atomic.Int64
}

func (c *walCounter) count() error {
	f, err := os.Open(c.path)
	if err != nil {
		return err
	}
	defer f.Close()
	const header, frameHeader, frame = 32, 24, 24 + 4096
	var b [frameHeader]byte
	if _, err := f.ReadAt(b[:8], 16); err != nil {
		return err
	}
	if salts := [8]byte(b[:8]); salts != c.salts {
		c.pages.Add(int64(len(c.copied)))
		c.salts, c.frames, c.copied = salts, 0, map[uint32]bool{}
	}
	for c.pages.Add(1); ; c.frames++ {
		if _, err := f.ReadAt(b[:], header+c.frames*frame); err != nil || !bytes.Equal(b[8:16], c.salts[:]) {
			return nil // the end
		}
		c.copied[binary.BigEndian.Uint32(b[:])] = true
		c.pages.Add(1)
	}
}
