package lifecycle

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestSlowest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trace := NewTrace(time.Now())
		store := trace.Part("datastore")
		time.Sleep(30 * time.Millisecond)
		store()
		store() // the second call does nothing
		quick := trace.Part("certificates")
		time.Sleep(time.Millisecond)
		quick()
		trace.Part("API server") // has not ended
		time.Sleep(5 * time.Millisecond)

		slowest := trace.Slowest(3)
		if len(slowest) != 2 || slowest[0].Part != "datastore" || slowest[0].Took != 30*time.Millisecond || slowest[1].Part != "certificates" {
			t.Errorf("slowest: got %+v, want datastore, 30 ms, and certificates", slowest)
		}
		if got := trace.Slowest(1); len(got) != 1 || got[0].Part != "datastore" {
			t.Errorf("the slowest: got %+v, want datastore", got)
		}
		parts := trace.Parts()
		if len(parts) != 3 || parts[2] != (Span{Part: "API server", Start: 31 * time.Millisecond}) {
			t.Errorf("parts: got %+v, want three, the API server last", parts)
		}
	})
}
