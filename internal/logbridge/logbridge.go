// Package logbridge makes one log of everything that the libraries in this process log: klog
// (Kubernetes), Go's own log package and the global logrus logger (kine) all write to one
// *logrus.Logger.
//
// A user seldom needs what libraries log at info, so their levels are moved down by one, except
// for problems:
//
//	library            here
//	fatal, panic       fatal    and the library ends the process
//	error              error
//	warning            warning
//	info (klog V(0))   debug
//	debug (klog V(1+)) trace
//
// gRPC's lines are dropped, because its callers get the errors; so are those of etcd clients, by
// server/apiserver.
//
// Warnings and errors that mean nothing to a user are debug as well: demote.go has a table of
// them.
//
// The logger's writer must not buffer, because klog.Fatal ends the process immediately after
// its line. The logger's hooks must not log through klog, which holds a lock while it writes.
package logbridge

import (
	"io"
	"log"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"

	"github.com/karve-k8s/karve/internal/redact"
	"github.com/karve-k8s/karve/internal/shell"
)

// componentKey is the field that names the library a line comes from.
const componentKey = "component"

// Values of the component field.
const (
	componentKubernetes = "kubernetes"
	componentGo         = "go"
)

// traceVerbosity is klog's -v while the logger is at trace. Upstream's documentation calls this
// level debugging; from 5 on, whole requests are printed.
const traceVerbosity = 4

var (
	// current is what the global loggers of libraries write to. They are set once, because most
	// of them must not be replaced while they are in use.
	current atomic.Pointer[target]

	installing    sync.Mutex
	redirectOther sync.Once
)

// target is a logger with its table of demotions.
type target struct {
	logger *logrus.Logger
	table  []demotion
}

// Install makes logger the log of klog, Go's log package and slog's default
// handler, and drops what gRPC logs. A second call replaces the logger of the first, for loggers
// already handed out (klog.Background, klog.FromContext) too.
//
// Make the first call before other goroutines log through klog, log or gRPC, which do not
// lock. Later calls are safe at any time, unless klog's logger was replaced in between.
//
// klog's verbosity (-v) is 4 if the logger is at trace, and 0 otherwise. Call Install again
// after a change of the logger's level. Lines of a -v or -vmodule that is set later are at
// trace.
//
// Unstructured klog lines of a verbosity above 0 (klog.V(3).Infof) look like those of V(0), so
// they are at debug instead of trace.
func Install(logger *logrus.Logger) { install(logger, demotions) }

func install(logger *logrus.Logger, table []demotion) {
	installing.Lock()
	defer installing.Unlock()
	current.Store(&target{logger: logger, table: table})

	verbosity := klog.Level(0)
	if logger.IsLevelEnabled(logrus.TraceLevel) {
		verbosity = traceVerbosity
	}
	if err := verbosity.Set(strconv.Itoa(int(verbosity))); err != nil { // klog's own, not the variable's
		panic(err) // cannot happen: the value is a number
	}
	// This is no sync.Once, because upstream's flag handling
	// (k8s.io/component-base/logs/api/v1) and tests restore klog's own logger.
	if _, ours := klog.Background().GetSink().(*sink); !ours {
		useSink()
	}
	redirectOther.Do(func() {
		log.SetFlags(0)
		log.SetPrefix("")
		log.SetOutput(goLog{})
		grpclog.SetLoggerV2(grpcLog{grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard)})
	})
}

// grpcLog drops gRPC's lines, because the callers get what matters as errors. A Fatal ends the process, so it says why.
type grpcLog struct{ grpclog.LoggerV2 }

func (grpcLog) Fatal(args ...any)                 { log.Fatal(args...) }
func (grpcLog) Fatalln(args ...any)               { log.Fatalln(args...) }
func (grpcLog) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }

// log writes one event. If [demotions] has a row for it, the level is debug.
func (t *target) log(level logrus.Level, component, message, errText string, fields logrus.Fields) {
	if level == logrus.WarnLevel || level == logrus.ErrorLevel {
		if reason, ok := demoted(t.table, message, errText, fields); ok {
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
		if text, ok := v.(string); ok {
			v = redact.WithoutValue(text)
		}
		entry.Data[k] = v
	}
	entry.Data[componentKey] = component
	if level <= logrus.WarnLevel {
		if remedy := Remedy(message + errText); remedy != "" {
			entry.Data["remedy"] = remedy
		}
	}
	// Entry.Log does not exit at FatalLevel; PanicLevel never comes here.
	entry.Log(level, redact.WithoutValue(strings.TrimRight(message, "\n")))
}

// broken matches what upstream says of a stored object whose bytes are broken.
var broken = regexp.MustCompile(`corrupt object, Code: \d+, Key: ([^,]+), .*object not decodable`)

// Remedy returns how to remove the stored object that text cannot read because its bytes are broken, or nothing. The API has no
// way for some kinds, such as namespaces and roles.
func Remedy(text string) string {
	if m := broken.FindStringSubmatch(text); m != nil {
		return "its bytes are broken: restore a backup, or delete it: etcdctl --endpoints unix://DATA-DIR/kine.sock del " + shell.Quoted(m[1])
	}
	return ""
}

// enabled returns the current target if it would write an event of this level.
func enabled(level logrus.Level) (*target, bool) {
	t := current.Load()
	return t, t != nil && t.logger.IsLevelEnabled(level)
}

// goLog is the writer of Go's log package. Few packages use it, and for problems only
// (net/http: a handler panicked), so its lines are warnings. slog's default handler writes to it
// too, with the level in front.
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

// Write writes one event. Package log neither splits nor joins events.
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

// nowhere formats nothing, for a logger whose hook writes the events.
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

// Quiet makes the global logrus logger (logrus.StandardLogger) write to logger: info lines of
// libraries that use it at debug, their debug lines at trace, each with the field component. A
// library that calls logrus.Fatal still ends the process. Quiet replaces the global logger's
// level, formatter and output. It keeps the ExitFunc and the hooks of others, which are called
// first. A second call replaces the first.
//
// Call Quiet again after a change of logger's level. If logger is the global logger, Quiet does
// nothing.
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
	hooks.Add(forward{&target{logger: logger, table: demotions}, component})
	global.SetFormatter(nowhere{})
	global.SetOutput(io.Discard)
	global.ReplaceHooks(hooks)
	global.SetLevel(level)
}
