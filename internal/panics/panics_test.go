package panics

import (
	"errors"
	"strings"
	"testing"
)

func TestCatch(t *testing.T) {
	own := errors.New("own")
	for _, want := range []error{nil, own} {
		if got := Catch(func() error { return want }); got != want { //nolint:errorlint // the same
			t.Errorf("got %v, want %v", got, want)
		}
	}
	var none map[string]int
	err := Catch(func() error { none["a"] = 1; return nil })
	if !errors.Is(err, Err) || !strings.Contains(err.Error(), "nil map") || !strings.Contains(err.Error(), "TestCatch") {
		t.Errorf("got %v, want the panic and its stack", err)
	}
}
