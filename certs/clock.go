package certs

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Boards without a clock battery boot in 1970 and learn the time later. Three
// rules make certificates live through that; DESIGN.md gives the reasons:
//
//   - NotBefore is always 1970-01-01, so nothing is ever "not yet valid";
//   - lifetimes count from the later of the clock and reference;
//   - the moment they count from is written into the certificate (marker).

// reference is a date this program cannot have run before. Move it forward
// with a release; never backward.
var reference = time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)

// Reference is that date: a clock that says less is wrong.
func Reference() time.Time { return reference }

// notBefore is the start of every certificate's validity.
var notBefore = time.Unix(0, 0).UTC()

// issueTime is the moment a lifetime starts to count when the clock says now.
func issueTime(now time.Time) time.Time {
	if now.Before(reference) {
		return reference
	}
	return now.UTC().Truncate(time.Second)
}

// dueAt is the moment from which less than a third of the life that began at
// issued and ends at notAfter is left.
func dueAt(issued, notAfter time.Time) time.Time {
	return notAfter.Add(-notAfter.Sub(issued) / 3)
}

// caCommonName makes a CA's name distinguishable from that of any other
// cluster and records when, by the clock of that moment, it was made.
func caCommonName(n Name, now time.Time) string {
	return fmt.Sprintf("karve-%s@%d", n, now.Unix())
}

// caCreated is the reverse of caCommonName.
func caCreated(cn string) (time.Time, bool) {
	i := strings.LastIndexByte(cn, '@')
	if i < 0 || !strings.HasPrefix(cn, "karve-") {
		return time.Time{}, false
	}
	sec, err := strconv.ParseInt(cn[i+1:], 10, 64)
	if err != nil {
		return time.Time{}, false
	}
	return time.Unix(sec, 0).UTC(), true
}

// date prints t the way notes and errors show it.
func date(t time.Time) string { return t.UTC().Format("2006-01-02") }
