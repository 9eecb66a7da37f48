package pace

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Watches
		want := func(why string, got, want time.Duration) {
			t.Helper()
			if got != want {
				t.Errorf("%s: held for %v, want %v", why, got, want)
			}
		}
		want("the first", w.Hold("a", "b", 5), 0)
		time.Sleep(Interval / 4)
		want("the second", w.Hold("a", "b", 5), 3*Interval/4)
		time.Sleep(Interval / 4)
		want("one beside it", w.Hold("a", "b", 5), Interval/2)
		want("another start", w.Hold("a", "b", 6), 0)
		want("another range", w.Hold("a", "c", 5), 0)
		time.Sleep(Interval/2 + Interval/4)
		want("one after the second", w.Hold("a", "b", 5), 3*Interval/4)
		time.Sleep(3 * Interval)
		want("one after a pause", w.Hold("a", "b", 5), 0)
		for i := range int64(10 * expire) {
			w.Hold("a", "b", i)
			time.Sleep(Interval / 10)
		}
		if n := len(w.latest); n > 2*expire {
			t.Errorf("%d entries are kept", n)
		}
	})
}
