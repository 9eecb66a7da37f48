// Package startup records how a start spends its time.
package startup

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/karve-k8s/karve/internal/atomicfile"
)

// Trace is a record of the parts of a start and their steps, with the time that each took.
// Several goroutines may call its methods. A nil Trace records nothing.
type Trace struct {
	began time.Time
	mu    sync.Mutex
	spans []*Span
}

// Span is a part, or a step of a part.
type Span struct {
	Part, Step string        // Step is empty for the whole part
	Start      time.Duration // since the beginning of the start
	Took       time.Duration // 0 while it has not ended
}

// New returns an empty trace of a start that began at the given time.
func New(began time.Time) *Trace { return &Trace{began: began} }

// Part records the beginning of a part. Call done at its end.
func (t *Trace) Part(name string) (done func()) { return t.Step(name, "") }

// Step records the beginning of a step of a part. Call done at its end.
func (t *Trace) Step(part, name string) (done func()) {
	if t == nil {
		return func() {}
	}
	s := &Span{Part: part, Step: name, Start: time.Since(t.began)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spans = append(t.spans, s)
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if s.Took == 0 {
			s.Took = max(time.Since(t.began)-s.Start, 1)
		}
	}
}

// Parts returns the parts, in the order in which they began.
func (t *Trace) Parts() []Span {
	return slices.DeleteFunc(t.all(), func(s Span) bool { return s.Step != "" })
}

// Slowest returns the n parts that took longest, the slowest first.
func (t *Trace) Slowest(n int) []Span {
	parts := slices.DeleteFunc(t.Parts(), func(s Span) bool { return s.Took == 0 })
	slices.SortStableFunc(parts, func(a, b Span) int { return cmp.Compare(b.Took, a.Took) })
	return parts[:min(n, len(parts))]
}

func (t *Trace) all() []Span {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Span, len(t.spans))
	for i, s := range t.spans {
		all[i] = *s
	}
	return all
}

// event is one of Chrome's trace events, with times in microseconds
// (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
type event struct {
	Name  string         `json:"name"`
	Phase string         `json:"ph"`
	Start float64        `json:"ts"`
	Took  float64        `json:"dur"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	Args  map[string]any `json:"args,omitempty"`
}

// Write writes the trace atomically to a file with mode 0600, in the format of Perfetto and
// Chrome's tracing. What has not ended yet ends now in the file, and is marked as unfinished.
func (t *Trace) Write(path string) error {
	events := []event{{Name: "process_name", Phase: "M", PID: 1, Args: map[string]any{"name": "karve"}}}
	tracks := map[string]int{}
	now := time.Since(t.began)
	for _, s := range t.all() {
		tid, known := tracks[s.Part]
		if !known {
			tid = len(tracks) + 1
			tracks[s.Part] = tid
			events = append(events, event{Name: "thread_name", Phase: "M", PID: 1, TID: tid, Args: map[string]any{"name": s.Part}})
		}
		e := event{Name: cmp.Or(s.Step, s.Part), Phase: "X", Start: micro(s.Start), Took: micro(s.Took), PID: 1, TID: tid}
		if s.Took == 0 {
			e.Took, e.Args = micro(now-s.Start), map[string]any{"unfinished": true}
		}
		events = append(events, e)
	}
	text, err := json.Marshal(map[string]any{"traceEvents": events, "displayTimeUnit": "ms"})
	if err != nil {
		return fmt.Errorf("write startup trace: %w", err)
	}
	// No fsync, because a trace of a start need not survive a power cut.
	file := atomicfile.File{Path: path, Data: text, Mode: 0o600}
	if err := (atomicfile.Writer{NoSync: true}).Write(file); err != nil {
		return fmt.Errorf("write startup trace: %w", err)
	}
	return nil
}

func micro(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
