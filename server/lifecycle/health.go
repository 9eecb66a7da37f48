package lifecycle

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
)

// errNotStarted is what a part reports before its first Set.
var errNotStarted = errors.New("not started yet")

// Checker is upstream's healthz.HealthChecker (k8s.io/apiserver/pkg/server/healthz).
type Checker interface {
	Name() string
	Check(*http.Request) error
}

// Health is what a part reports about itself: its line in /readyz, and the reason that a start names when the part is
// not ready in time. The zero value is that of a part that has not started.
type Health struct {
	mu     sync.Mutex
	checks []Checker
	err    error
	up     bool
}

// Set replaces what the part reports: err, and the errors of checks.
func (p *Health) Set(err error, checks ...Checker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checks, p.err, p.up = checks, err, true
}

// Check returns nil if the part is healthy.
func (p *Health) Check(r *http.Request) error {
	p.mu.Lock()
	checks, err, up := p.checks, p.err, p.up
	p.mu.Unlock()
	if !up {
		return errNotStarted
	}
	errs := []error{err}
	for _, check := range checks {
		if err := check.Check(r); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", check.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// LastError returns why the part is not ready, or nil if it is.
func (p *Health) LastError() error {
	r, _ := http.NewRequest(http.MethodGet, "/", nil) // these arguments are valid
	return p.Check(r)
}
