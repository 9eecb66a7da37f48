package main

import "testing"

// The lists name every Conformance test of the Kubernetes version in go.mod, once.
func TestListsAreUpstreams(t *testing.T) {
	upstream, err := upstreamTests(t.Context(), ".")
	if err != nil {
		t.Fatal(err)
	}
	if len(upstream) < 400 {
		t.Fatalf("upstream has %d Conformance tests; v1.37 has more than 400", len(upstream))
	}
	if err := readLists("lists", upstream); err != nil {
		t.Error(err)
	}
	if _, err := readFailing("lists", upstream); err != nil {
		t.Error(err)
	}
	for _, l := range lists {
		if len(l.tests) == 0 {
			t.Errorf("the list %s is empty", l.Name)
		}
	}
}
