// Package check checks a machine before a control plane starts on it. It says what
// would be refused, what would be slow, and what to do about it. It leaves nothing behind.
package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Result is the result of a check.
type Result string

// Where a check fails, a start is refused, or loses data. A warning is about something that
// works and may surprise.
const (
	OK      Result = "ok"
	Warn    Result = "warn"
	Fail    Result = "fail"
	Unknown Result = "unknown" // the system does not tell
)

// Finding is what one check found.
type Finding struct {
	Check  string `json:"check"`
	Result Result `json:"result"`
	Found  string `json:"found"`
	Do     string `json:"do,omitempty"` // what to do about it; empty if nothing
}

// Target is what the start would use.
type Target struct {
	// DataDir is the server's data directory, which need not exist yet.
	DataDir string
	// StoreDir is the built-in datastore's directory. If it is empty, the datastore is
	// another one, and Store names it.
	StoreDir, Store string
	// Look reads the database. Beside a running server, only that server can do it.
	Look func(path string) (*sqlitefile.Info, error)
	// Ports are the ports on which the server would listen.
	Ports []Port
	// Replaced is the pid of a server that stops before the start. What it uses counts as
	// free. 0 is none.
	Replaced int
	// MemoryLimit is the Go runtime's soft limit, in bytes; 0 is none.
	MemoryLimit int64
}

// Port is a port that the server would listen on.
type Port struct {
	Option string       // the option's name, without dashes
	Number int          // 0 is any free port
	Try    func() error // listens and stops again; the error names the option
}

// host is the machine as the checks see it. Tests have others.
type host struct {
	root fs.FS // its files; paths have no leading slash
	now  func() time.Time
}

func thisHost() *host {
	return &host{root: os.DirFS("/"), now: time.Now}
}

// read is os.ReadFile on that machine.
func (h *host) read(path string) ([]byte, error) { return fs.ReadFile(h.root, path[1:]) }

// Run makes every check, in the order in which people want to read them. Measuring the
// disk's speed takes two seconds at most.
func Run(ctx context.Context, t Target) []Finding {
	h := thisHost()
	all := []Finding{
		h.memory(t.MemoryLimit),
		h.clock(t),
	}
	all = append(all, checkPlaces(ctx, t)...)
	all = append(all, checkStore(t))
	own, _, _ := directory.Holder(t.DataDir) // an error is a finding about the data directory
	return append(all, checkPorts(t.Ports, t.Replaced != 0 || own != 0)...)
}

// Failed counts the findings that are failures.
func Failed(all []Finding) int {
	n := 0
	for _, f := range all {
		if f.Result == Fail {
			n++
		}
	}
	return n
}

func found(check string, r Result, do, format string, args ...any) Finding {
	return Finding{Check: check, Result: r, Found: fmt.Sprintf(format, args...), Do: do}
}

// notKnown returns the finding of a check whose source does not exist, as on every system
// except Linux.
func notKnown(check string, err error) Finding {
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, errors.ErrUnsupported) {
		return found(check, Unknown, "", "unknown on this system")
	}
	return found(check, Unknown, "", "unknown on this system: %v", err)
}

// size formats bytes for people.
func size(bytes int64) string {
	switch {
	case bytes >= 10<<30:
		return fmt.Sprintf("%d Gi", bytes>>30)
	case bytes >= 1<<30:
		return fmt.Sprintf("%.1f Gi", float64(bytes)/(1<<30))
	}
	return fmt.Sprintf("%d Mi", bytes>>20)
}
