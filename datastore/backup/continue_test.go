package backup

import (
	"testing"
	"time"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// What is restored a second time goes on above what the first restore has given out, also if that was soon after an earlier restore.
func TestARevisionIsUsedOnceAcrossRestores(t *testing.T) {
	given, now := int64(300), time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	for range 100 {
		first, second := above(given, now), above(given, now.Add(time.Minute))
		if first < given+RevisionMargin || second < first+10_000 {
			t.Fatalf("from %d: %d, and %d a minute later", given, first, second)
		}
		given, now = second+5, now.Add(time.Hour)
	}
	for _, now := range []time.Time{{}, time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)} {
		if got := above(given, now); got < given+RevisionMargin || got > sqlitefile.MaxRevision {
			t.Errorf("at %v: %d after %d", now, got, given)
		}
	}
	given = sqlitefile.MaxRevision - 2*RevisionMargin // what a restore takes for the newest revision of a damaged database
	if got := above(given, now); got != given+RevisionMargin {
		t.Errorf("%d after %d", got, given)
	}
}
