// Package logbridge makes one log of everything that is written in this
// process: klog (Kubernetes), Go's own log package, gRPC, the global logrus
// logger (kine) and zap (the etcd client) all end up in one *logrus.Logger.
//
// What libraries find worth mentioning is seldom what a user wants to read, so
// their levels are moved down by one, except where something is wrong:
//
//	library            here
//	fatal, panic       fatal    the process ends as the library has it
//	error              error
//	warning            warning
//	info (klog V(0))   debug
//	debug (klog V(1+)) trace
//
// gRPC is an exception: its warnings and errors are debug, since whoever made
// the call gets them too and knows what they mean, and its info is trace.
//
// The logger must write through at once (no buffering writer): klog.Fatal ends
// the process right after its line. Its hooks must not log through klog, which
// holds a lock while it writes.
package logbridge

import (
	"io"
	"log"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
)

// The field that says which part of the process a line came from.
const componentKey = "component"

// Values of the component field for what is not ours.
const (
	componentKubernetes = "kubernetes"
	componentGRPC       = "grpc"
	componentGo         = "go"
)

// traceVerbosity is klog's -v while the logger is at trace: the level which
// upstream's documentation calls debugging (5 and up print whole requests).
const traceVerbosity = 4

var (
	// current is where the global loggers of libraries lead. They are pointed
	// at it once, since most of them must not be changed while in use.
	current atomic.Pointer[target]

	installing    sync.Mutex
	redirectOther sync.Once
)

// target is a logger with the table of what is known to be harmless.
type target struct {
	logger *logrus.Logger
	noise  []Noise
}

// Install makes logger the log of klog, Go's log package, slog's default
// handler and gRPC. A second call replaces the logger of the first, for loggers
// already handed out (klog.Background, klog.FromContext) too.
//
// The first call must come before other goroutines log through klog, log or
// gRPC, which do not lock; later ones may come at any time, unless somebody has
// replaced klog's logger in between.
//
// klog's verbosity (-v) is 4 when the logger is at trace and 0 otherwise. It is
// read from the logger's level here: call Install again after changing that.
// Whoever sets -v or -vmodule afterwards gets the additional lines at trace.
//
// Unstructured klog lines below V(0) (klog.V(3).Infof) cannot be told from
// V(0), and come at debug rather than trace.
func Install(logger *logrus.Logger) { install(logger, Demote) }

func install(logger *logrus.Logger, noise []Noise) {
	installing.Lock()
	defer installing.Unlock()
	current.Store(&target{logger: logger, noise: noise})

	verbosity := klog.Level(0)
	if logger.IsLevelEnabled(logrus.TraceLevel) {
		verbosity = traceVerbosity
	}
	if err := verbosity.Set(strconv.Itoa(int(verbosity))); err != nil { // klog's own, not the variable's
		panic(err) // a number: cannot happen
	}
	// Asking rather than a sync.Once: upstream's flag handling
	// (k8s.io/component-base/logs/api/v1) and tests put klog's own back.
	if _, ours := klog.Background().GetSink().(*sink); !ours {
		useSink()
	}
	redirectOther.Do(func() {
		log.SetFlags(0)
		log.SetPrefix("")
		log.SetOutput(goLog{})
		grpclog.SetLoggerV2(grpcLog{})
	})
}

// log writes one event, unless it is known to be harmless and debug is off.
func (t *target) log(level logrus.Level, component, message, errText string, fields logrus.Fields) {
	if level == logrus.WarnLevel || level == logrus.ErrorLevel {
		if reason, ok := harmless(t.noise, message, errText); ok {
			level = logrus.DebugLevel
			if fields == nil {
				fields = logrus.Fields{}
			}
			fields["demoted"] = reason
		}
	}
	if !t.logger.IsLevelEnabled(level) {
		return
	}
	entry := logrus.NewEntry(t.logger)
	for k, v := range fields {
		entry.Data[k] = v
	}
	entry.Data[componentKey] = component
	// Entry.Log does not exit at FatalLevel; PanicLevel never comes here.
	entry.Log(level, strings.TrimRight(message, "\n"))
}

// enabled returns the current target if it would write an event of this level.
func enabled(level logrus.Level) (*target, bool) {
	t := current.Load()
	return t, t != nil && t.logger.IsLevelEnabled(level)
}

// goLog is where Go's log package writes. Hardly anything uses it, and what
// does has found something wrong (net/http: a handler that panicked), so its
// lines are warnings; but slog's default handler writes its level in front.
type goLog struct{}

var slogLevels = []struct {
	prefix string
	level  logrus.Level
}{
	{"DEBUG ", logrus.TraceLevel},
	{"INFO ", logrus.DebugLevel},
	{"WARN ", logrus.WarnLevel},
	{"ERROR ", logrus.ErrorLevel},
}

// Write takes one event: log never splits or joins them.
func (goLog) Write(p []byte) (int, error) {
	message, level := string(p), logrus.WarnLevel
	for _, s := range slogLevels {
		if rest, ok := strings.CutPrefix(message, s.prefix); ok {
			message, level = rest, s.level
			break
		}
	}
	if t, ok := enabled(level); ok {
		t.log(level, componentGo, message, "", nil)
	}
	return len(p), nil
}

// nowhere formats to nothing: for a logger whose hook does the work.
type nowhere struct{}

func (nowhere) Format(*logrus.Entry) ([]byte, error) { return nil, nil }

// forward is a hook of the global logrus logger.
type forward struct {
	to        *target
	component string
}

func (forward) Levels() []logrus.Level { return logrus.AllLevels }

func (f forward) Fire(e *logrus.Entry) error {
	level := e.Level
	switch level {
	case logrus.InfoLevel:
		level = logrus.DebugLevel
	case logrus.DebugLevel:
		level = logrus.TraceLevel
	case logrus.PanicLevel:
		level = logrus.FatalLevel // the library's own logger panics after this
	}
	fields := make(logrus.Fields, len(e.Data)+1)
	errText := ""
	for k, v := range e.Data {
		fields[key(k)] = plain(v)
		if err, ok := v.(error); ok {
			errText = text(err)
		}
	}
	f.to.log(level, f.component, e.Message, errText, fields)
	return nil
}

// Quiet leads the global logrus logger (logrus.StandardLogger) into logger: the
// info lines of libraries that use it come out at debug, their debug lines at
// trace, each with the field component. A library that calls logrus.Fatal still
// ends the process. Level, formatter and output of the global logger are replaced;
// its ExitFunc and hooks of others are kept, and come first. A second call replaces
// the first.
//
// The level is taken from logger here, so that what is not wanted costs
// nothing: call Quiet again after changing it. If logger is the global logger
// itself nothing happens.
func Quiet(logger *logrus.Logger, component string) {
	global := logrus.StandardLogger()
	if logger == global {
		return
	}
	installing.Lock()
	defer installing.Unlock()
	level := logger.GetLevel()
	switch {
	case level == logrus.DebugLevel:
		level = logrus.InfoLevel
	case level == logrus.InfoLevel:
		level = logrus.WarnLevel
	}
	hooks := logrus.LevelHooks{}
	for level, others := range global.ReplaceHooks(logrus.LevelHooks{}) {
		for _, h := range others {
			if _, ours := h.(forward); !ours {
				hooks[level] = append(hooks[level], h)
			}
		}
	}
	hooks.Add(forward{&target{logger: logger, noise: Demote}, component})
	global.SetFormatter(nowhere{})
	global.SetOutput(io.Discard)
	global.ReplaceHooks(hooks)
	global.SetLevel(level)
}
