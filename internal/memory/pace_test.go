package memory

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
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

// Work that can wait begins after the first second without much work, after ten, or not at all
// in a server that stops.
func TestAwaitQuiet(t *testing.T) {
	for name, test := range map[string]struct{ busy, stop, want time.Duration }{
		"nothing to do":  {0, time.Hour, time.Second},
		"a burst":        {3500 * time.Millisecond, time.Hour, 5 * time.Second},
		"always busy":    {time.Hour, time.Hour, 10 * time.Second},
		"stopped before": {time.Hour, 2500 * time.Millisecond, 2500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), test.stop)
				defer cancel()
				began := time.Now()
				last := began
				awaitQuiet(ctx, func() bool { // busy since the last call
					before := last
					last = time.Now()
					return before.Sub(began) < test.busy
				})
				if took := time.Since(began); took != test.want {
					t.Errorf("it took %v, want %v", took, test.want)
				}
			})
		})
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

// A server with plenty of memory settles for work: many clusters are used as soon as they are ready.
func TestSettleForWork(t *testing.T) {
	t.Setenv("GOGC", "")
	debug.SetGCPercent(100)
	runtime.GC()
	c := Begin(NoLimit, false)
	c.Settle()
	if percent, _ := settings(); percent <= 2*restPercent {
		t.Errorf("after Settle: got %d %%, want more", percent)
	}
	c.End()
	if percent, _ := settings(); percent != 100 {
		t.Errorf("after End: got %d %%, want 100", percent)
	}
}
