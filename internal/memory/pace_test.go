package memory

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestRoomWithin(t *testing.T) {
	for limit, want := range map[int64]int64{NoLimit: mostRoom, 12 << 30: mostRoom, 2 << 30: 128 << 20, 256 << 20: 16 << 20} {
		if got := roomWithin(limit); got != want {
			t.Errorf("roomWithin(%d): got %d, want %d", limit, got, want)
		}
	}
}

func TestAdapt(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	runtime.GC() // the test's heap is far smaller than the room
	for _, test := range []struct {
		room  int64
		busy  bool
		least int
		most  int
	}{
		{mostRoom, true, 2 * restPercent, 1 << 30},
		{mostRoom, false, restPercent, restPercent},
		{1, true, restPercent, restPercent},
	} {
		adapt(test.room, test.busy)
		if percent, _ := settings(); percent < test.least || percent > test.most {
			t.Errorf("room %d, busy %t: got %d %%, want %d to %d", test.room, test.busy, percent, test.least, test.most)
		}
	}
}

// What busyPercent returns leaves the room that it was asked for.
func TestBusyPercentLeavesRoom(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	live := make([]byte, 32<<20)
	runtime.GC()
	debug.SetGCPercent(busyPercent(mostRoom))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for made := 0; made < mostRoom/2; made += len(live) { // the runtime begins at 0.7 of the way at the earliest
		garbage = make([]byte, len(live))
	}
	if runtime.ReadMemStats(&after); after.NumGC != before.NumGC {
		t.Errorf("%d collections within half of the room", after.NumGC-before.NumGC)
	}
	for made := 0; made < mostRoom; made += len(live) {
		garbage = make([]byte, len(live))
	}
	if runtime.ReadMemStats(&after); after.NumGC == before.NumGC {
		t.Error("no collection when the room was used up")
	}
	garbage = nil
	runtime.KeepAlive(live)
}

var garbage []byte // keeps the compiler from allocating on the stack

func TestBusy(t *testing.T) {
	var m meter
	m.busy()
	m.at = m.at.Add(-time.Hour)
	if m.busy() {
		t.Error("busy after an hour without allocations")
	}
	m.allocated -= 1 << 40 // as if there had been more: 18 hours at busyRate
	if !m.busy() {
		t.Error("not busy after many allocations in a second")
	}
}

func TestNotify(t *testing.T) {
	c, end := make(chan struct{}, 1), make(chan struct{})
	notify(c, end)
	for range 3 {
		runtime.GC()
		<-c
	}
	close(end)
}
