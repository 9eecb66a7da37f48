package logbridge

import (
	"fmt"
	"os"
	"strings"

	"github.com/sirupsen/logrus"
)

// grpcLog is a grpclog.LoggerV2 that writes everything at debug, and costs
// nothing while debug is off. Fatal ends the process, as it must.
type grpcLog struct{}

func grpcWrite(format func() string) {
	if t, ok := enabled(logrus.DebugLevel); ok {
		t.log(logrus.DebugLevel, componentGRPC, format(), "", nil)
	}
}

func grpcPrint(args []any) { grpcWrite(func() string { return fmt.Sprint(args...) }) }

func grpcPrintln(args []any) {
	grpcWrite(func() string { return strings.TrimRight(fmt.Sprintln(args...), "\n") })
}

func grpcPrintf(format string, args []any) {
	grpcWrite(func() string { return fmt.Sprintf(format, args...) })
}

func (grpcLog) Info(args ...any)                    { grpcPrint(args) }
func (grpcLog) Infoln(args ...any)                  { grpcPrintln(args) }
func (grpcLog) Infof(format string, args ...any)    { grpcPrintf(format, args) }
func (grpcLog) Warning(args ...any)                 { grpcPrint(args) }
func (grpcLog) Warningln(args ...any)               { grpcPrintln(args) }
func (grpcLog) Warningf(format string, args ...any) { grpcPrintf(format, args) }
func (grpcLog) Error(args ...any)                   { grpcPrint(args) }
func (grpcLog) Errorln(args ...any)                 { grpcPrintln(args) }
func (grpcLog) Errorf(format string, args ...any)   { grpcPrintf(format, args) }
func (grpcLog) Fatal(args ...any)                   { grpcFatal(fmt.Sprint(args...)) }
func (grpcLog) Fatalln(args ...any)                 { grpcFatal(fmt.Sprintln(args...)) }
func (grpcLog) Fatalf(format string, args ...any)   { grpcFatal(fmt.Sprintf(format, args...)) }

// V is whether gRPC's details of this level are wanted: 0 and 1 at trace.
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
