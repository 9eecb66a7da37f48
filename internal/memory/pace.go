package memory

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// mostRoom bounds how many bytes a busy server may allocate between two collections. What
	// survives is scattered over the room, so a part of it stays in use in the lull afterwards.
	mostRoom = 160 << 20
	// busyRate is how many bytes a second a busy server allocates. At rest, that is a collection
	// every two or three seconds.
	busyRate = 16 << 20
)

// roomWithin returns how many bytes a busy server may allocate between two collections: a
// sixteenth of the limit, at most mostRoom. On a machine of 4 GiB, Limit's auto makes that 128 MiB.
func roomWithin(limit int64) int64 { return min(limit/16, mostRoom) }

// busyPercent returns the target that leaves room, and never less than the one at rest. A
// collection becomes due when the heap has grown by this share of what the last one went through
// (https://go.dev/doc/gc-guide#GOGC).
func busyPercent(room int64) int {
	figures := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}
	metrics.Read(figures)
	var through uint64
	for _, f := range figures {
		through += f.Value.Uint64()
	}
	return max(restPercent, int(100*room/int64(max(through, 1))))
}

// adapt sets the target after a collection.
func adapt(room int64, busy bool) {
	percent := restPercent
	if busy {
		percent = busyPercent(room)
	}
	debug.SetGCPercent(percent)
}

// A meter measures how fast this process allocates.
type meter struct {
	allocated uint64
	at        time.Time
}

// busy reports whether the process has allocated at least busyRate since the last call.
func (m *meter) busy() bool {
	figures := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(figures)
	last := *m
	m.allocated, m.at = figures[0].Value.Uint64(), time.Now()
	return float64(m.allocated-last.allocated) >= busyRate*m.at.Sub(last.at).Seconds()
}

// A sentinel is garbage at once. It has a pointer, so that it gets memory of its own.
type sentinel struct{ _ *sentinel }

// notify sends on c after each collection that comes before end is closed, unless c is full.
func notify(c chan<- struct{}, end <-chan struct{}) {
	runtime.AddCleanup(new(sentinel), func(struct{}) {
		select {
		case <-end:
			return
		default:
		}
		notify(c, end) // first, so that the next collection is not missed
		select {
		case c <- struct{}{}:
		default:
		}
	}, struct{}{})
}
