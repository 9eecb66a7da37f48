package lifecycle

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// Trace is a record of the parts of a start, with the time that each took. Several goroutines may
// call its methods.
type Trace struct {
	began time.Time
	mu    sync.Mutex
	spans []*Span
}

// Span is the start of a part.
type Span struct {
	Part  string
	Start time.Duration // since the beginning of the start
	Took  time.Duration // 0 while it has not ended
}

// NewTrace returns an empty trace of a start that began at the given time.
func NewTrace(began time.Time) *Trace { return &Trace{began: began} }

// Began returns when the start began.
func (t *Trace) Began() time.Time { return t.began }

// Part records the beginning of a part. Call done at its end.
func (t *Trace) Part(name string) (done func()) {
	s := &Span{Part: name, Start: time.Since(t.began)}
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
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Span, len(t.spans))
	for i, s := range t.spans {
		all[i] = *s
	}
	return all
}

// Slowest returns the n parts that took longest, the slowest first.
func (t *Trace) Slowest(n int) []Span {
	parts := slices.DeleteFunc(t.Parts(), func(s Span) bool { return s.Took == 0 })
	slices.SortStableFunc(parts, func(a, b Span) int { return cmp.Compare(b.Took, a.Took) })
	return parts[:min(n, len(parts))]
}

// traced records how long a part takes to become ready.
func (t *Trace) traced(p Part) Part {
	return Part{p.Name, p.Needs, func(ctx context.Context, ready func()) error {
		done := t.Part(p.Name)
		return p.Run(ctx, func() { done(); ready() })
	}}
}
