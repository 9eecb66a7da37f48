package logbridge

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/sirupsen/logrus"
	"golang.org/x/term"
)

// Valid values of the flags --log-format and --log-level, as New accepts them.
const (
	formats = "text, json"
	levels  = "error, warning, info, debug, trace"
)

// New returns the logger of the process, which writes to w at once.
//
// format (--log-format) is "text" or "json"; level (--log-level) is error,
// warning, info, debug or trace, in any case. The error names the flag, the
// value and the valid ones.
//
// Text on a terminal is short and coloured, unless NO_COLOR is set or TERM is
// "dumb"; otherwise it is logfmt with full timestamps. An event is always one
// line, with control characters escaped.
func New(w io.Writer, format, level string) (*logrus.Logger, error) {
	logger := logrus.New()
	logger.SetOutput(w)
	switch strings.ToLower(format) {
	case "text":
		logger.SetFormatter(textFormatter(onTerminal(w)))
	case "json":
		logger.SetFormatter(&logrus.JSONFormatter{TimestampFormat: timestamp, DisableHTMLEscape: true})
	default:
		return nil, fmt.Errorf("--log-format=%q: want one of %s", format, formats)
	}
	l, err := logrus.ParseLevel(level)
	if err != nil || l < logrus.ErrorLevel { // a level at which errors are lost helps nobody
		return nil, fmt.Errorf("--log-level=%q: want one of %s", level, levels)
	}
	logger.SetLevel(l)
	return logger, nil
}

const timestamp = "2006-01-02T15:04:05.000Z07:00"

func textFormatter(coloured bool) logrus.Formatter {
	if !coloured {
		// logfmt, with everything quoted that needs it.
		return &logrus.TextFormatter{DisableColors: true, TimestampFormat: timestamp}
	}
	return escaping{&logrus.TextFormatter{ForceColors: true, FullTimestamp: true, TimestampFormat: "15:04:05"}}
}

func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && runtime.GOOS != "windows" && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" &&
		term.IsTerminal(int(f.Fd()))
}

// escaping keeps an event on its line where logrus does not: its coloured
// format writes the message as it is. Keys are written as they are in both.
type escaping struct{ logrus.Formatter }

// Format formats e, whose message it may change: it is a copy made for this.
func (f escaping) Format(e *logrus.Entry) ([]byte, error) {
	e.Message = oneLine(strings.TrimRight(e.Message, "\n"))
	return f.Formatter.Format(e)
}
