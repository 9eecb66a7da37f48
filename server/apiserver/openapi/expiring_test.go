package openapi

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		k := expiring[int]{make: func() (int, error) { made++; return made, nil }}
		want := func(value int) {
			t.Helper()
			if got, err := k.get(); got != value || err != nil {
				t.Errorf("got %d, %v, want %d", got, err, value)
			}
		}
		if _, there := k.peek(); there {
			t.Error("it is there before it was asked for")
		}
		want(1)
		time.Sleep(keepFor - time.Second)
		want(1) // this request extends its life
		time.Sleep(keepFor - time.Second)
		if got, there := k.peek(); got != 1 || !there {
			t.Errorf("peek: got %d, %v, want 1, true", got, there)
		}
		time.Sleep(2 * time.Second)
		if _, there := k.peek(); there {
			t.Errorf("it is still there %v after it was asked for; looking must not keep it", keepFor+time.Second)
		}
		want(2)
		time.Sleep(keepFor + time.Second) // no timer is left at the end of the bubble
	})
}

func TestKeptRetriesAfterAnError(t *testing.T) {
	broken := errors.New("broken")
	k := expiring[int]{make: func() (int, error) { return 0, broken }}
	if _, err := k.get(); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	k.make = func() (int, error) { return 7, nil }
	defer k.forget()
	if got, err := k.get(); got != 7 || err != nil {
		t.Errorf("got %d, %v, want 7 at the second attempt", got, err)
	}
}
