package logbridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/sirupsen/logrus"
	"k8s.io/klog/v2"
)

// buffer can be read safely while a logger writes to it.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// take returns the events since the last call. Each line is one event.
func (b *buffer) take(t *testing.T) (events []map[string]any) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for line := range strings.Lines(b.b.String()) {
		var e map[string]any
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Errorf("line %q: %v", line, err)
		}
		events = append(events, e)
	}
	b.b.Reset()
	return events
}

func one(t *testing.T, b *buffer) map[string]any {
	t.Helper()
	events := b.take(t)
	if len(events) != 1 {
		t.Fatalf("got %d events, want 1: %v", len(events), events)
	}
	return events[0]
}

func check(t *testing.T, what string, got map[string]any, want map[string]any) {
	t.Helper()
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s: field %s is %v, want %v; event %v", what, k, got[k], v, got)
		}
	}
}

func logger(t *testing.T, level string) (*logrus.Logger, *buffer) {
	t.Helper()
	b := new(buffer)
	l, err := New(b, "json", level)
	if err != nil {
		t.Fatal(err)
	}
	return l, b
}

func TestGoLogAndSlog(t *testing.T) {
	l, b := logger(t, "trace")
	Install(l)
	for _, tc := range []struct {
		write      func()
		level, msg string
	}{
		{func() { log.Printf("http: panic serving\ngoroutine 1") }, "warning", "http: panic serving\ngoroutine 1"},
		{func() { slog.Info("hello", "a", 1) }, "debug", "hello a=1"},
		{func() { slog.Warn("hello") }, "warning", "hello"},
		{func() { slog.Error("hello") }, "error", "hello"},
	} {
		tc.write()
		check(t, tc.msg, one(t, b), map[string]any{"level": tc.level, "msg": tc.msg, "component": "go"})
	}
}

// Upstream logs what a client has sent as a Secret, if its type is wrong.
func TestNoValuesOfObjects(t *testing.T) {
	l, b := logger(t, "info")
	Install(l)
	for _, err := range []string{
		`.stringData.a: expected string, got &value.valueUnstructured{Value:4815162342}`, ".stringData: expected map, got &{a\n4815162342\n}",
		".spec.list: expected list, got &{4815162342}", ".spec.on: expected boolean, got &{4815162342}", ".spec.any: expected any scalar, got &{map[a:4815162342]}",
	} {
		err := fmt.Errorf("failed to create typed patch object (default/a; /v1, Kind=Secret): %s", err)
		klog.ErrorS(err, "Unhandled Error")
		klog.Errorf("apiserver received an error: %#v: %v", err, err)
		klog.InfoS("refused", "err", err)
		for _, e := range b.take(t) {
			if text := fmt.Sprint(e); strings.Contains(text, "4815162342") || !strings.Contains(text, "expected ") {
				t.Errorf("got %s, want the error without its value", text)
			}
		}
	}
}

func TestQuiet(t *testing.T) {
	global := logrus.StandardLogger()
	formatter, out, hooks, level, exit := global.Formatter, global.Out, global.Hooks, global.Level, global.ExitFunc
	t.Cleanup(func() {
		global.SetFormatter(formatter)
		global.SetOutput(out)
		global.ReplaceHooks(hooks)
		global.SetLevel(level)
		global.ExitFunc = exit
	})
	exits := 0
	global.ExitFunc = func(int) { exits++ }

	l, b := logger(t, "trace")
	Quiet(l, "kine")
	for _, tc := range []struct {
		write func()
		level string
	}{
		{func() { logrus.Trace("m") }, "trace"},
		{func() { logrus.Debug("m") }, "trace"},
		{func() { logrus.Info("m") }, "debug"},
		{func() { logrus.Warn("m") }, "warning"},
		{func() { logrus.Error("m") }, "error"},
		{func() { logrus.Fatal("m") }, "fatal"},
		{func() { defer func() { recover() }(); logrus.Panic("m") }, "fatal"},
	} {
		tc.write()
		check(t, tc.level, one(t, b), map[string]any{"level": tc.level, "msg": "m", "component": "kine"})
	}
	if exits != 1 {
		t.Errorf("ExitFunc called %d times, want 1", exits)
	}
	logrus.WithError(errors.New("boom")).WithField("f", make(chan int)).Warn("with fields")
	check(t, "fields", one(t, b), map[string]any{"error": "boom", "level": "warning"})

	seen := &counter{}
	global.AddHook(seen)
	for level, want := range map[string]logrus.Level{"debug": logrus.InfoLevel, "info": logrus.WarnLevel, "warning": logrus.WarnLevel, "error": logrus.ErrorLevel} {
		l, b := logger(t, level)
		Quiet(l, "kine")
		if got := global.GetLevel(); got != want {
			t.Errorf("at %s the global logger is at %v, want %v", level, got, want)
		}
		logrus.Error("m")
		one(t, b) // replaced, not added
	}
	if seen.events != 4 {
		t.Errorf("a hook of somebody else saw %d events, want 4", seen.events)
	}
	Quiet(global, "itself") // must not loop
	logrus.Error("m")
}

// counter is a hook that Quiet has to keep.
type counter struct{ events int }

func (*counter) Levels() []logrus.Level     { return logrus.AllLevels }
func (c *counter) Fire(*logrus.Entry) error { c.events++; return nil }

func TestNew(t *testing.T) {
	for _, tc := range []struct{ format, level, want string }{
		{"text", "info", ""},
		{"JSON", "Warning", ""},
		{"text", "warn", ""},
		{"xml", "info", `--log-format="xml": want one of text, json`},
		{"", "info", "--log-format"},
		{"text", "verbose", `--log-level="verbose": want one of error, warning, info, debug, trace`},
		{"text", "fatal", "--log-level"},
	} {
		_, err := New(io.Discard, tc.format, tc.level)
		if (err == nil) != (tc.want == "") || (err != nil && !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("New(%q, %q): got %v, want %q", tc.format, tc.level, err, tc.want)
		}
	}
}

// TestOneLine logs a message and values that would break a line, in each format.
func TestOneLine(t *testing.T) {
	nasty := "one\ntwo\r\x1b[2J\u2028three\n"
	jsonLogger, jsonOut := logger(t, "debug")
	jsonLogger.WithField("f", nasty).Info(nasty)
	one(t, jsonOut)
	for name, coloured := range map[string]bool{"logfmt": false, "terminal": true} {
		var b bytes.Buffer
		l := logrus.New()
		l.SetOutput(&b)
		l.SetFormatter(textFormatter(coloured))
		l.WithField("f", nasty).Info(nasty)
		got := b.String()
		if n := strings.Count(got, "\n"); n != 1 || strings.Contains(got, "\r") || strings.Contains(got, "\x1b[2J") {
			t.Errorf("%s: got %q, want one line without control characters", name, got)
		}
		if !strings.Contains(got, `one\ntwo`) {
			t.Errorf("%s: got %q, want the newline escaped once", name, got)
		}
	}
}

// TestLongTexts logs texts of a stranger that would fill a disk.
func TestLongTexts(t *testing.T) {
	long := strings.Repeat("ü", 1<<20)
	for _, format := range []string{"text", "json"} {
		var b bytes.Buffer
		l, err := New(&b, format, "info")
		if err != nil {
			t.Fatal(err)
		}
		l.WithField("f", long).WithError(errors.New(long)).Info(long)
		if got := b.Len(); got > 4*mostBytes || strings.Count(b.String(), "(2097152 bytes)") != 3 {
			t.Errorf("%s: got %d bytes, want three texts of %d", format, got, mostBytes)
		}
	}
}

// TestConcurrent logs from many goroutines while loggers are replaced. It is for -race.
func TestConcurrent(t *testing.T) {
	first, _ := logger(t, "trace")
	Install(first)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 50 {
				klog.Warningf("w %d", j)
				klog.V(2).InfoS("i", "j", j)
				klog.Background().WithName("n").WithValues("i", i).Error(nil, "e")
				log.Print("l")
			}
		})
	}
	for range 20 {
		l, _ := logger(t, "trace")
		Install(l)
	}
	wg.Wait()
	last, b := logger(t, "debug")
	Install(last)
	for i := range 4 {
		wg.Go(func() {
			for range 25 {
				klog.Warningf("%d\n%d", i, i)
			}
		})
	}
	wg.Wait()
	if got := len(b.take(t)); got != 100 {
		t.Errorf("got %d events, want 100", got)
	}
}

// TestMain lets the test binary act as a program that ends in klog.Fatal.
func TestMain(m *testing.M) {
	if how := os.Getenv("KARVE_LOGBRIDGE_TEST"); how != "" {
		l, err := New(os.Stderr, "text", "error")
		if err != nil {
			panic(err)
		}
		Install(l)
		switch how {
		case "fatal":
			klog.Fatalf("the end of %s", "it")
		case "exit":
			klog.Exit("the end of it")
		}
		fmt.Println("still here")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestFatal(t *testing.T) {
	for how, code := range map[string]int{"fatal": 255, "exit": 1} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "KARVE_LOGBRIDGE_TEST="+how)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != code {
			t.Errorf("%s: got %v, want exit status %d", how, err, code)
		}
		got := string(out)
		if strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=fatal") || !strings.Contains(got, `msg="the end of it"`) {
			t.Errorf("%s: got %q, want one fatal line", how, got)
		}
	}
}
