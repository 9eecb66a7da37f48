package initially

import (
	"runtime/debug"
	"testing"
)

// The collector is off until Done, which brings back what was there before.
func TestDone(t *testing.T) {
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	if now := debug.SetGCPercent(-1); now != -1 {
		t.Errorf("before Done: got %d, want -1", now)
	}
	Done()
	if now := debug.SetGCPercent(-1); now != percent || now < 0 {
		t.Errorf("after Done: got %d, want %d", now, percent)
	}
}
