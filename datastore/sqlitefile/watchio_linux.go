package sqlitefile

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// How often WatchIO checks, and how much has to be read or written in between to count as progress. What
// else a starting process does is less.
const (
	watchEvery = time.Second
	watchLeast = 256 << 10
)

// WatchIO reports how much this process has read and written as the progress of one long statement,
// which reports none itself, until stop is called. A statement that hangs neither reads nor writes, so
// nothing is reported then.
func WatchIO(progress Progress) (stop func()) {
	if progress == nil {
		return func() {}
	}
	end, ended := make(chan struct{}), make(chan struct{})
	begin := processIO()
	go func() {
		defer close(ended)
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		var told int64
		for {
			select {
			case <-tick.C:
				if done := processIO() - begin; done-told >= watchLeast {
					told = done
					progress(done, 0)
				}
			case <-end:
				return
			}
		}
	}()
	return func() { close(end); <-ended }
}

// processIO returns how many bytes this process has read and written, including from the page cache
// (proc_pid_io(5)).
func processIO() (n int64) {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if name == "rchar" || name == "wchar" {
			bytes, _ := strconv.ParseInt(value, 10, 64)
			n += bytes
		}
	}
	return n
}
