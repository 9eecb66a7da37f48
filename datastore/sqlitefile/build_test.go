package sqlitefile

import (
	"testing"
	"testing/synctest"
	"time"
)

// Work that reports nothing itself is reported at an interval, and not after its end.
func TestMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := 0
		stop := Progress(func(done, total int64) { told++ }).Meanwhile(time.Second, func() (int64, int64) { return 1, 2 })
		time.Sleep(3500 * time.Millisecond)
		stop()
		time.Sleep(time.Hour)
		if told != 3 {
			t.Errorf("told %d times, want 3", told)
		}
	})
}
