package output

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/karve-k8s/karve/datastore"
)

// Meter tells on standard error how far long work has come: on a terminal in one
// line that changes every second, and that end removes, elsewhere in lines ten
// seconds apart. Short work prints nothing.
func Meter(c *cli.Context) (progress datastore.Progress, end func()) {
	w, every, format := c.App.ErrWriter, 10*time.Second, "karve: %s: %d%%\n"
	file, ok := w.(*os.File)
	terminal := ok && term.IsTerminal(int(file.Fd()))
	if terminal {
		every, format = time.Second, "\r%s: %d%%\x1b[K"
	}
	var mu sync.Mutex
	last, printed := time.Now(), false
	progress = func(done, total int64) {
		mu.Lock()
		defer mu.Unlock()
		if total <= 0 || time.Since(last) < every {
			return
		}
		last, printed = time.Now(), true
		fmt.Fprintf(w, format, c.Command.Name, 100*done/total)
	}
	return progress, func() {
		mu.Lock()
		defer mu.Unlock()
		if terminal && printed {
			fmt.Fprint(w, "\r\x1b[K")
		}
		printed = false
	}
}
