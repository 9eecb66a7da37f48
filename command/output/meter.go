package output

import (
	"fmt"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Meter prints the progress of long work on standard error, in percent; see [Report].
func Meter(c *cli.Context) (progress sqlitefile.Progress, end func()) {
	show, end := Report(c)
	return func(done, total int64) {
		if total > 0 {
			show(func() string { return fmt.Sprintf("%d%%", 100*done/total) })
		}
	}, end
}

// Report prints the progress of long work on standard error: on a terminal in one line that changes
// every second and that end removes, elsewhere a line every ten seconds. It prints nothing about
// short work. show asks for a text only when it prints one.
func Report(c *cli.Context) (show func(text func() string), end func()) {
	line, every := NewLine(c.App.ErrWriter), 10*time.Second
	if line != nil {
		every = time.Second
	}
	var mu sync.Mutex
	last := time.Now()
	show = func(text func() string) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(last) < every {
			return
		}
		last = time.Now()
		whole := fmt.Sprintf("karve: %s: %s", c.Command.Name, text())
		if line != nil {
			line.Show(whole)
		} else {
			fmt.Fprintln(c.App.ErrWriter, whole)
		}
	}
	return show, func() {
		if line != nil {
			line.Clear()
		}
	}
}
