package logbridge

import (
	"fmt"
	"strings"

	"github.com/go-logr/logr"
	"github.com/sirupsen/logrus"
	"k8s.io/klog/v2"
)

// useSink makes a sink klog's logger.
//
// klog has two kinds of calls. Structured ones (InfoS, ErrorS, loggers from a context) reach a
// logr.LogSink with their level, error and values. Unstructured ones (Infof, Warningf, Fatal)
// would reach it as Info, without their severity. So WriteKlogBuffer gets them, as the line that
// klog would have written, which begins with the severity.
func useSink() {
	// With a logger, this only keeps Fatal from writing its stack to stderr in klog's format.
	klog.LogToStderr(true)
	klog.SetLoggerWithOptions(logr.New(&sink{}), klog.ContextualLogger(true), klog.WriteKlogBuffer(writeKlogLine))
}

// writeKlogLine writes one event, which is in klog's format. It must not keep line. klog holds
// its lock during the call.
func writeKlogLine(line []byte) {
	if len(line) > 4 && line[0] == 'I' && line[4] >= '0' && line[4] <= '9' {
		if _, ok := enabled(logrus.DebugLevel); !ok {
			return // most lines are of this kind: do not parse them
		}
	}
	level, message := parseKlog(string(line))
	if t, ok := enabled(level); ok {
		t.log(level, componentKubernetes, message, "", nil)
	}
}

// parseKlog parses "W1121 05:14:52.123456    4711 file.go:12] message\n" (klog.go, header). A
// line without a header (-skip_headers) may be of any severity, so it is info instead of debug.
func parseKlog(line string) (level logrus.Level, message string) {
	level = logrus.InfoLevel
	header, message, ok := strings.Cut(line, "] ")
	words := strings.Fields(header)
	if !ok || len(words) != 4 || len(words[0]) != 5 || strings.Trim(words[0][1:], "0123456789") != "" || strings.Contains(header, "\n") {
		return level, strings.TrimRight(line, "\n")
	}
	switch words[0][0] {
	case 'I':
		level = logrus.DebugLevel
	case 'W':
		level = logrus.WarnLevel
	case 'E':
		level = logrus.ErrorLevel
	case 'F':
		level = logrus.FatalLevel
	default:
		return level, strings.TrimRight(line, "\n")
	}
	return level, strings.TrimRight(message, "\n")
}

// sink is a logr.LogSink that writes to the current logger. A sink never changes.
type sink struct {
	name   string
	values []any
}

// Init is called once by logr.New.
func (*sink) Init(logr.RuntimeInfo) {}

func vLevel(v int) logrus.Level {
	if v > 0 {
		return logrus.TraceLevel
	}
	return logrus.DebugLevel
}

// Enabled asks the logger before klog's -v, so that most calls cost two loads.
func (s *sink) Enabled(v int) bool {
	if _, ok := enabled(vLevel(v)); !ok {
		return false
	}
	return v <= 0 || klog.V(klog.Level(v)).Enabled()
}

// Info writes an event for which Enabled has returned true.
func (s *sink) Info(v int, message string, kv ...any) {
	level := vLevel(v)
	if t, ok := enabled(level); ok {
		t.log(level, componentKubernetes, message, errorIn(kv), s.fields(kv))
	}
}

// Error writes an event; logr calls it without Enabled.
func (s *sink) Error(err error, message string, kv ...any) {
	t, ok := enabled(logrus.ErrorLevel)
	if !ok {
		return
	}
	fields, errText := s.fields(kv), ""
	if err != nil {
		errText = text(err)
		fields[logrus.ErrorKey] = errText
	}
	t.log(logrus.ErrorLevel, componentKubernetes, message, errText, fields)
}

// WithValues returns a sink that adds these to each event.
func (s *sink) WithValues(kv ...any) logr.LogSink {
	c := *s
	// A new slice, because two loggers derived from this one must not share its capacity.
	c.values = append(append(make([]any, 0, len(s.values)+len(kv)+1), s.values...), kv...)
	if len(kv)%2 != 0 {
		c.values = append(c.values, missing)
	}
	return &c
}

// WithName returns a sink whose events have the field "logger".
func (s *sink) WithName(name string) logr.LogSink {
	c := *s
	if c.name != "" {
		name = c.name + "." + name
	}
	c.name = name
	return &c
}

// fields returns the values of an event. The last value of a name counts.
func (s *sink) fields(kv []any) logrus.Fields {
	fields := make(logrus.Fields, (len(s.values)+len(kv))/2+3)
	add(fields, s.values)
	add(fields, kv)
	if s.name != "" {
		fields["logger"] = s.name
	}
	return fields
}

func add(fields logrus.Fields, kv []any) {
	for i := 0; i < len(kv); i += 2 {
		value := any(missing)
		if i+1 < len(kv) {
			value = kv[i+1]
		}
		name, ok := kv[i].(string)
		if !ok {
			name = fmt.Sprint(kv[i])
		}
		fields[key(name)] = plain(value)
	}
}

// errorIn returns the error among the values of an info event.
func errorIn(kv []any) string {
	for i := 0; i+1 < len(kv); i += 2 {
		if err, ok := kv[i+1].(error); ok && err != nil {
			return text(err)
		}
	}
	return ""
}
