package logbridge

import (
	"github.com/sirupsen/logrus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Zap returns a zap logger that writes to the logger of the last Install, with the field component, for
// etcd clients. Its info is debug and its debug is trace. Without a call of Install, its lines are dropped.
// Fatal ends the process and Panic panics, as with any zap logger.
func Zap(component string) *zap.Logger { return zap.New(&zapCore{component: component}) }

type zapCore struct {
	component string
	fields    []zapcore.Field
}

func fromZap(l zapcore.Level) logrus.Level {
	switch {
	case l < zapcore.InfoLevel:
		return logrus.TraceLevel
	case l < zapcore.WarnLevel:
		return logrus.DebugLevel
	case l < zapcore.ErrorLevel:
		return logrus.WarnLevel
	case l < zapcore.PanicLevel: // DPanic too: it panics in development only
		return logrus.ErrorLevel
	}
	return logrus.FatalLevel
}

// Enabled reports whether an event of this level would be written.
func (c *zapCore) Enabled(l zapcore.Level) bool {
	_, ok := enabled(fromZap(l))
	return ok
}

// With returns a core that adds fields to each event.
func (c *zapCore) With(fields []zapcore.Field) zapcore.Core {
	d := *c
	d.fields = append(append(make([]zapcore.Field, 0, len(c.fields)+len(fields)), c.fields...), fields...)
	return &d
}

// Check adds this core to those that write the event.
func (c *zapCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

// Write writes one event.
func (c *zapCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	to, ok := enabled(fromZap(e.Level))
	if !ok {
		return nil
	}
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range c.fields {
		f.AddTo(enc)
	}
	for _, f := range fields {
		f.AddTo(enc)
	}
	out, errText := make(logrus.Fields, len(enc.Fields)+2), ""
	for k, v := range enc.Fields {
		out[key(k)] = plain(v)
	}
	if s, ok := out[logrus.ErrorKey].(string); ok {
		errText = s
	}
	if e.LoggerName != "" {
		out["logger"] = e.LoggerName
	}
	if e.Caller.Defined && to.logger.IsLevelEnabled(logrus.DebugLevel) {
		out["source"] = e.Caller.TrimmedPath()
	}
	to.log(fromZap(e.Level), c.component, e.Message, errText, out)
	return nil
}

// Sync does nothing, because events are not buffered.
func (c *zapCore) Sync() error { return nil }
