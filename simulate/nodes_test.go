package simulate

import (
	"testing"
	"time"
)

func TestRenewals(t *testing.T) {
	for grace, want := range map[time.Duration]time.Duration{0: 20 * time.Second, 50 * time.Second: 20 * time.Second, 5 * time.Minute: 20 * time.Second, 5 * time.Second: 2 * time.Second, time.Second: time.Second} {
		if got := renewInterval(grace); got != want {
			t.Errorf("with a grace period of %v: got %v, want %v", grace, got, want)
		}
	}
	// A tenth of the nodes at a time, at any time of the clock, and none too rarely.
	s := &simulation{interval: 20 * time.Second}
	start := time.Date(2026, 11, 21, 12, 0, 7, 300e6, time.UTC)
	at := map[time.Time]int{}
	for i := range 1000 {
		n := &node{index: i, renewed: start}
		first := s.nextRenewal(n, start)
		if first < s.interval*9/10 || first > s.interval*19/10 {
			t.Errorf("node %d renews after %v", i, first)
		}
		n.renewed = start.Add(first)
		at[n.renewed]++
		if next := s.nextRenewal(n, n.renewed); next != s.interval {
			t.Errorf("node %d renews again after %v, want %v", i, next, s.interval)
		}
	}
	if len(at) != slots {
		t.Errorf("renewals at %d moments, want %d", len(at), slots)
	}
}
