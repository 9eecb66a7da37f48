package output

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/internal/logbridge"
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

// SilenceKine discards what kine logs as if a server started and stopped, and what gRPC logs: what fails is the command's error.
func SilenceKine() {
	silent := logrus.New()
	silent.SetOutput(io.Discard)
	logbridge.Install(silent)
	logbridge.Quiet(silent, "kine")
}
