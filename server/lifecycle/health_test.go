package lifecycle

import (
	"errors"
	"net/http"
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
	broken := errors.New("no answer")
	want := func(want string) {
		t.Helper()
		got := ""
		if err := p.LastError(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	want(errNotStarted.Error())
	p.Set(nil, check{"good", nil})
	want("")
	p.Set(nil, check{"good", nil}, check{"bad", broken})
	want("bad: no answer")
	p.Set(errors.New("stopped"), check{"bad", broken})
	want("stopped\nbad: no answer")
}
