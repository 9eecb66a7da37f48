package output

import (
	"fmt"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// reportEvery is the time between two lines of [Report].
const reportEvery = 10 * time.Second

// Meter prints the progress of long work on standard error, in percent; see [Report].
func Meter(c *cli.Context) sqlitefile.Progress {
	show := Report(c)
	return func(done, total int64) {
		if total > 0 {
			show(fmt.Sprintf("%d%%", 100*done/total))
		}
	}
}

// Report prints the progress of long work on standard error, and nothing about short work.
func Report(c *cli.Context) (show func(text string)) {
	var mu sync.Mutex
	last := time.Now()
	return func(text string) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(last) >= reportEvery {
			last = time.Now()
			fmt.Fprintf(c.App.ErrWriter, "karve: %s: %s\n", c.Command.Name, text)
		}
	}
}
