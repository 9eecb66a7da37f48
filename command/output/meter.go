package output

import (
	"fmt"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Meter prints the progress of long work on standard error: on a terminal in one line that changes
// every second and that end removes, elsewhere a line every ten seconds. It prints nothing about
// short work.
func Meter(c *cli.Context) (progress sqlitefile.Progress, end func()) {
	line, every := NewLine(c.App.ErrWriter), 10*time.Second
	if line != nil {
		every = time.Second
	}
	var mu sync.Mutex
	last := time.Now()
	progress = func(done, total int64) {
		mu.Lock()
		defer mu.Unlock()
		if total <= 0 || time.Since(last) < every {
			return
		}
		last = time.Now()
		text := fmt.Sprintf("karve: %s: %d%%", c.Command.Name, 100*done/total)
		if line != nil {
			line.Show(text)
		} else {
			fmt.Fprintln(c.App.ErrWriter, text)
		}
	}
	return progress, func() {
		if line != nil {
			line.Clear()
		}
	}
}
