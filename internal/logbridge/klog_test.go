package logbridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/klog/v2"
)

func TestKlogSeverities(t *testing.T) {
	l, b := logger(t, "trace")
	Install(l)
	ctx := klog.NewContext(context.Background(), klog.Background().WithName("a").WithName("b").WithValues("k", "v"))
	boom := errors.New("boom")
	for _, tc := range []struct {
		name  string
		write func()
		want  map[string]any
	}{
		{"Info", func() { klog.Info("m") }, map[string]any{"level": "debug", "msg": "m"}},
		{"Infof", func() { klog.Infof("m %d", 1) }, map[string]any{"level": "debug", "msg": "m 1"}},
		{"Warning", func() { klog.Warning("m") }, map[string]any{"level": "warning", "msg": "m"}},
		{"Warningf", func() { klog.Warningf("a\nb] c") }, map[string]any{"level": "warning", "msg": "a\nb] c"}},
		{"Warningln", func() { klog.Warningln("m", 1) }, map[string]any{"level": "warning", "msg": "m 1"}},
		{"Errorf", func() { klog.Errorf("m %v", boom) }, map[string]any{"level": "error", "msg": "m boom"}},
		{"InfoS", func() { klog.InfoS("m", "a", 1, "b", true) }, map[string]any{"level": "debug", "a": 1.0, "b": true}},
		{"V(3).InfoS", func() { klog.V(3).InfoS("m") }, map[string]any{"level": "trace", "msg": "m"}},
		{"V(3).Infof", func() { klog.V(3).Infof("m") }, map[string]any{"level": "debug", "msg": "m"}},
		{"ErrorS", func() { klog.ErrorS(boom, "m", "a", "x") }, map[string]any{"level": "error", "error": "boom", "a": "x"}},
		{"ErrorS without an error", func() { klog.ErrorS(nil, "m") }, map[string]any{"level": "error", "error": nil}},
		{"InfoS with an error", func() { klog.InfoS("m", "err", boom) }, map[string]any{"level": "debug", "error": "boom"}},
		{"FromContext", func() { klog.FromContext(ctx).Info("m", "n", 1) }, map[string]any{"level": "debug", "logger": "a.b", "k": "v", "n": 1.0}},
		{"FromContext V", func() { klog.FromContext(ctx).V(4).Info("m") }, map[string]any{"level": "trace"}},
		{"FromContext Error", func() { klog.FromContext(ctx).Error(boom, "m") }, map[string]any{"level": "error", "error": "boom", "k": "v"}},
		{"Background", func() { klog.Background().Info("m") }, map[string]any{"level": "debug"}},
		{"TODO", func() { klog.TODO().Error(boom, "m") }, map[string]any{"level": "error"}},
		{"LoggerWithValues", func() { klog.LoggerWithValues(klog.Background(), "x", 1, "odd").Info("m", "x", 2) }, map[string]any{"x": 2.0, "odd": "(MISSING)"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.write()
			got := one(t, b)
			check(t, tc.name, got, tc.want)
			check(t, tc.name, got, map[string]any{"component": "kubernetes"})
		})
	}
	klog.V(5).Info("m")
	klog.V(5).InfoS("m")
	klog.Background().V(5).Info("m")
	if e := b.take(t); len(e) != 0 {
		t.Errorf("V(5) at trace: got %v", e)
	}
}

func TestKlogLevels(t *testing.T) {
	for _, tc := range []struct {
		level string
		want  int // of the events below
		v     bool
	}{{"error", 1, false}, {"warning", 2, false}, {"info", 2, false}, {"debug", 4, false}, {"trace", 6, true}} {
		l, b := logger(t, tc.level)
		Install(l)
		klog.Error("m")
		klog.Warning("m")
		klog.Info("m")
		klog.InfoS("m")
		klog.V(4).Info("m")
		klog.Background().V(4).Info("m")
		if got := len(b.take(t)); got != tc.want {
			t.Errorf("%s: got %d events, want %d", tc.level, got, tc.want)
		}
		if got := klog.V(4).Enabled(); got != tc.v {
			t.Errorf("%s: klog.V(4) is %v, want %v", tc.level, got, tc.v)
		}
	}
	// The user's -v applies, within the logger's level.
	l, b := logger(t, "trace")
	Install(l)
	var v klog.Level
	if err := v.Set("6"); err != nil {
		t.Fatal(err)
	}
	klog.Background().V(6).Info("m")
	check(t, "V(6)", one(t, b), map[string]any{"level": "trace"})
	l.SetLevel(logrus.InfoLevel)
	if klog.Background().V(6).Enabled() || klog.Background().Enabled() {
		t.Error("enabled at info")
	}
	Install(l) // and klog's -v is 0 again for the tests that follow
}

// TestReplacedLoggerIsPutBack replaces and restores the logger like upstream's logs options
// and ktesting.
func TestReplacedLoggerIsPutBack(t *testing.T) {
	l, b := logger(t, "info")
	Install(l)
	old := klog.Background()
	klog.ClearLogger()
	l2, b2 := logger(t, "info")
	Install(l2)
	klog.Warning("m")
	check(t, "after ClearLogger", one(t, b2), map[string]any{"level": "warning"})
	old.Error(nil, "m")
	check(t, "a logger handed out before", one(t, b2), map[string]any{"level": "error"})
	if e := b.take(t); len(e) != 0 {
		t.Errorf("the first logger got %v", e)
	}
}

type panics struct{}

func (*panics) String() string { panic("no") }

type marshaler struct{}

func (marshaler) MarshalLog() any { return map[string]int{"n": 1} }

func TestValues(t *testing.T) {
	l, b := logger(t, "debug")
	Install(l)
	for _, tc := range []struct {
		value, want any
	}{
		{"s", "s"},
		{uint8(7), 7.0},
		{true, true},
		{2 * time.Second, "2s"},
		{math.NaN(), "NaN"},
		{1.5, "1.5"},
		{[]byte("raw"), "raw"},
		{[]string{"a", "b"}, `["a","b"]`},
		{struct{ A int }{1}, `{"A":1}`},
		{klog.KRef("ns", "name"), "ns/name"},
		{fmt.Errorf("wrapped: %w", io.EOF), "wrapped: EOF"},
		{nil, "<nil>"},
		{(*panics)(nil), "<panic: no>"},
		{marshaler{}, `{"n":1}`},
	} {
		klog.InfoS("m", "value", tc.value)
		check(t, fmt.Sprintf("%T", tc.value), one(t, b), map[string]any{"value": tc.want})
	}
	// A value that JSON cannot represent must not lose the event.
	klog.InfoS("m", "f", func() {}, "c", make(chan int), 7, "seven", "a b=\n", 1)
	check(t, "odd", one(t, b), map[string]any{"7": "seven", "a_b__": 1.0})
	klog.InfoS("m", "msg", "x", "level", "y")
	check(t, "clashes", one(t, b), map[string]any{"msg": "m", "fields.msg": "x", "level": "debug"})
}

func FuzzParseKlog(f *testing.F) {
	f.Add("W1121 05:14:52.123456    4711 file.go:12] message\n")
	f.Add("no header] at all")
	f.Add("I] ")
	f.Fuzz(func(t *testing.T, line string) {
		level, message := parseKlog(line)
		if level < logrus.FatalLevel || level > logrus.DebugLevel || !strings.Contains(line, message) {
			t.Errorf("parseKlog(%q) = %v, %q", line, level, message)
		}
	})
}
