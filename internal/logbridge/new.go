package logbridge

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/sirupsen/logrus"
	"golang.org/x/term"
)

// Valid values of the flags --log-format and --log-level, as New accepts them.
const (
	formats = "text, json"
	levels  = "error, warning, info, debug, trace"
)

// New returns a logger that writes to w without a buffer.
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
		logger.SetFormatter(limited{textFormatter(colours(w))})
	case "json":
		logger.SetFormatter(limited{&logrus.JSONFormatter{TimestampFormat: timestamp, DisableHTMLEscape: true}})
	default:
		return nil, fmt.Errorf("--log-format=%q: want one of %s", format, formats)
	}
	l, err := logrus.ParseLevel(level)
	if err != nil || l < logrus.ErrorLevel { // every valid level includes errors
		return nil, fmt.Errorf("--log-level=%q: want one of %s", level, levels)
	}
	logger.SetLevel(l)
	return logger, nil
}

const timestamp = "2006-01-02T15:04:05.000Z07:00"

func textFormatter(coloured bool) logrus.Formatter {
	if !coloured {
		// logfmt, with quotes where they are needed.
		return &logrus.TextFormatter{DisableColors: true, TimestampFormat: timestamp}
	}
	return escaping{&logrus.TextFormatter{ForceColors: true, FullTimestamp: true, TimestampFormat: "15:04:05"}}
}

// colours reports whether w is a terminal that shows colours, and NO_COLOR (https://no-color.org) is not set.
func colours(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" &&
		term.IsTerminal(int(f.Fd()))
}

// mostBytes is how much of a message or a value is in the log. Nodes, webhooks and other strangers write a part of some.
const mostBytes = 32 << 10

// limited cuts what is longer.
type limited struct{ logrus.Formatter }

// Format formats e. It may change e, which is a copy with fields of its own.
func (f limited) Format(e *logrus.Entry) ([]byte, error) {
	e.Message = limit(e.Message)
	for key, value := range e.Data {
		switch value := value.(type) {
		case string:
			e.Data[key] = limit(value)
		case error:
			e.Data[key] = limit(value.Error())
		}
	}
	return f.Formatter.Format(e)
}

func limit(text string) string {
	if len(text) <= mostBytes {
		return text
	}
	return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(text[:mostBytes], ""), len(text))
}

// escaping escapes line breaks in messages. logrus' coloured format writes messages unchanged.
// Neither escapes keys.
type escaping struct{ logrus.Formatter }

// Format formats e. It may change the message, because e is a copy.
func (f escaping) Format(e *logrus.Entry) ([]byte, error) {
	e.Message = oneLine(strings.TrimRight(e.Message, "\n"))
	return f.Formatter.Format(e)
}
