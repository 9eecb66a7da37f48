package external

import (
	"errors"
	"runtime"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
)

// kine's SQL drivers call logrus.Fatal where they cannot commit or roll back (kine
// pkg/drivers/generic/tx.go: MustCommit, MustRollback). An interrupted compaction would end
// the process. A hook of the global logger makes it an error. Fatal of any other caller works
// as before. kine's bridge calls it as well (pkg/server/watch.go), but is not asked for watches.
const kineFrames = "github.com/k3s-io/kine/"

// containFrame is the name of contain in a stack trace.
const containFrame = "github.com/karve-k8s/karve/kine/external.contain"

// gaveUp carries the message of a logrus.Fatal to contain.
type gaveUp struct{ message string }

// notFollowed is logged by kine when it cannot begin to follow the log of a database. The watch
// that wanted it then waits for ever (kine pkg/broadcaster, Watch).
const notFollowed = "Failed to subscribe to broadcaster"

// contain runs body. If kine calls logrus.Fatal in it, contain returns the message as an
// error. kine's deferred calls run; kine holds no lock where it calls Fatal.
func contain(body func() error) (err error) {
	defer func() {
		switch reason := recover().(type) {
		case nil:
		case gaveUp:
			err = errors.New(reason.message)
		default:
			panic(reason)
		}
	}()
	return body()
}

// running are the open databases. A Fatal in a goroutine of kine's own is reported to all of
// them, because nothing tells whose goroutine it is.
var running struct {
	sync.Mutex
	all map[*Backend]bool
}

// catchFatal installs the hook once. logbridge.Quiet keeps it.
var catchFatal = sync.OnceFunc(func() { logrus.AddHook(fatalHook{}) })

type fatalHook struct{}

func (fatalHook) Levels() []logrus.Level {
	return []logrus.Level{logrus.FatalLevel, logrus.ErrorLevel}
}

// Fire runs in the goroutine that called Fatal, before the process would end. The logger holds
// no lock.
func (fatalHook) Fire(e *logrus.Entry) error {
	isFatal := e.Level == logrus.FatalLevel
	if !isFatal && !strings.HasPrefix(e.Message, notFollowed) {
		return nil
	}
	ofKine, contained := callers()
	switch {
	case !ofKine:
		return nil
	case contained:
		panic(gaveUp{e.Message})
	}
	running.Lock()
	for b := range running.all {
		if !b.ending() {
			b.fail(errors.New(e.Message))
		}
	}
	running.Unlock()
	if isFatal {
		runtime.Goexit()
	}
	return nil
}

// callers tells whether kine is on the stack, and whether contain is above it.
func callers() (ofKine, contained bool) {
	pcs := make([]uintptr, 128)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for more := true; more; {
		var frame runtime.Frame
		frame, more = frames.Next()
		ofKine = ofKine || strings.HasPrefix(frame.Function, kineFrames)
		contained = contained || frame.Function == containFrame
	}
	return ofKine, contained
}
