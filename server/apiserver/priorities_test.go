package apiserver

import "testing"

func TestPrioritiesAreUpstreams(t *testing.T) {
	if len(kubePriorities) < 30 {
		t.Fatalf("upstream's table has %d rows: it was renamed or moved, look for it", len(kubePriorities))
	}
}
