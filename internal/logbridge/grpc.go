package logbridge

import (
	"fmt"
	"os"
	"strings"

	"github.com/sirupsen/logrus"
)

// grpcLog is a grpclog.LoggerV2 that writes problems at debug and the rest, such as every state
// of every connection, at trace. It formats nothing while those levels are off. Fatal ends the
// process, as grpclog demands.
type grpcLog struct{}

const (
	grpcInfo  = logrus.TraceLevel
	grpcWrong = logrus.DebugLevel
)

func grpcWrite(level logrus.Level, format func() string) {
	if t, ok := enabled(level); ok {
		t.log(level, componentGRPC, format(), "", nil)
	}
}

func grpcPrint(level logrus.Level, args []any) {
	grpcWrite(level, func() string { return fmt.Sprint(args...) })
}

func grpcPrintln(level logrus.Level, args []any) {
	grpcWrite(level, func() string { return strings.TrimRight(fmt.Sprintln(args...), "\n") })
}

func grpcPrintf(level logrus.Level, format string, args []any) {
	grpcWrite(level, func() string { return fmt.Sprintf(format, args...) })
}

func (grpcLog) Info(args ...any)                    { grpcPrint(grpcInfo, args) }
func (grpcLog) Infoln(args ...any)                  { grpcPrintln(grpcInfo, args) }
func (grpcLog) Infof(format string, args ...any)    { grpcPrintf(grpcInfo, format, args) }
func (grpcLog) Warning(args ...any)                 { grpcPrint(grpcWrong, args) }
func (grpcLog) Warningln(args ...any)               { grpcPrintln(grpcWrong, args) }
func (grpcLog) Warningf(format string, args ...any) { grpcPrintf(grpcWrong, format, args) }
func (grpcLog) Error(args ...any)                   { grpcPrint(grpcWrong, args) }
func (grpcLog) Errorln(args ...any)                 { grpcPrintln(grpcWrong, args) }
func (grpcLog) Errorf(format string, args ...any)   { grpcPrintf(grpcWrong, format, args) }
func (grpcLog) Fatal(args ...any)                   { grpcFatal(fmt.Sprint(args...)) }
func (grpcLog) Fatalln(args ...any)                 { grpcFatal(fmt.Sprintln(args...)) }
func (grpcLog) Fatalf(format string, args ...any)   { grpcFatal(fmt.Sprintf(format, args...)) }

// V reports whether gRPC is to log details of this level: 0 and 1 if the logger is at trace.
func (grpcLog) V(level int) bool {
	_, ok := enabled(logrus.TraceLevel)
	return ok && level < 2
}

func grpcFatal(message string) {
	if t, ok := enabled(logrus.FatalLevel); ok {
		t.log(logrus.FatalLevel, componentGRPC, message, "", nil)
	}
	os.Exit(1)
}
