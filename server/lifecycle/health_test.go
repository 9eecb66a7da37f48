package lifecycle

import (
	"errors"
	"net/http"
	"strings"
	"testing"
)

type check struct {
	name string
	err  error
}

func (c check) Name() string              { return c.name }
func (c check) Check(*http.Request) error { return c.err }

func TestHealthIsOfThePartAndItsChecks(t *testing.T) {
	var p Health
	want := func(when string, parts ...string) {
		t.Helper()
		err := p.LastError()
		if len(parts) == 0 {
			if err != nil {
				t.Errorf("%s: got %v, want no error", when, err)
			}
			return
		}
		for _, part := range parts {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: got %v, want an error that contains %q", when, err, part)
			}
		}
	}
	want("before the start", errNotStarted.Error())
	p.Set(nil, check{"good", nil})
	want("all checks pass")
	broken := errors.New("no answer")
	p.Set(nil, check{"good", nil}, check{"bad", broken})
	want("a check fails", "bad: no answer")
	if !errors.Is(p.LastError(), broken) {
		t.Error("the error does not wrap that of the check")
	}
	p.Set(errors.New("stopped"), check{"bad", broken})
	want("the part has stopped", "stopped", "bad: no answer")
}
