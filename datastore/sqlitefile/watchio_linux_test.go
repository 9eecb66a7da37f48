package sqlitefile

import (
	"os"
	"testing"
	"time"
)

// Work that says nothing of itself is seen by what it reads.
func TestWatchIO(t *testing.T) {
	f, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	told := make(chan int64, 100)
	stop := WatchIO(func(done, total int64) { told <- done })
	defer stop()
	block := make([]byte, 64<<10)
	for deadline := time.Now().Add(time.Minute); ; {
		if _, err := f.Read(block); err != nil {
			t.Fatal(err)
		}
		select {
		case n := <-told:
			if n < watchLeast {
				t.Errorf("told of %d bytes, want %d at least", n, watchLeast)
			}
			return
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing is told")
		}
	}
}
