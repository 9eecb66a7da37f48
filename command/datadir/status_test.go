package datadir

import (
	"errors"
	"testing"
)

func TestFailedChecks(t *testing.T) {
	t.Parallel()
	failure := errors.New("500")
	const verbose = "[+]ping ok\n[-]etcd failed: reason withheld\n[-]poststarthook/start failed: reason withheld\nreadyz check failed\n"
	if got, want := failedChecks([]byte(verbose), failure), "failed checks: etcd, poststarthook/start"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := failedChecks(nil, failure); got != "500" {
		t.Errorf("got %q, want the error", got)
	}
}
