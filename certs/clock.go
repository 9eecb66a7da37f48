package certs

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A board without a clock battery boots in 1970 and learns the time later. Three rules keep
// its certificates valid; DESIGN.md gives the reasons:
//
//   - NotBefore is always 1970-01-01, so nothing is ever "not yet valid";
//   - lifetimes count from the later of the clock and reference;
//   - the certificate has the moment from which they count (marker).

// reference is a date before which this program did not exist. Move it forward with a
// release, never backward.
var reference = time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)

// Reference returns that date. A clock that is before it is wrong.
func Reference() time.Time { return reference }

// notBefore is the start of every certificate's validity.
var notBefore = time.Unix(0, 0).UTC()

// issueTime is the moment from which a lifetime counts when the clock says now.
func issueTime(now time.Time) time.Time {
	if now.Before(reference) {
		return reference
	}
	return now.UTC().Truncate(time.Second)
}

// dueAt returns the moment when two thirds of the lifetime from issued to notAfter are
// over.
func dueAt(issued, notAfter time.Time) time.Time {
	return notAfter.Add(-notAfter.Sub(issued) / 3)
}

// caCommonName makes a CA's name different from that of any other cluster. It also records
// when the CA was made, by the clock of that moment.
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

// date formats t for notes and errors.
func date(t time.Time) string { return t.UTC().Format("2006-01-02") }
