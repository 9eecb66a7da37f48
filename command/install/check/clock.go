package check

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/karve-k8s/karve/certs"
)

// slack is by how much a clock may be wrong without a finding.
const slack = time.Hour

// clock finds a clock that must be wrong. A server starts with a wrong clock, and continues
// when it is set, so that is a warning. If a certificate of the user's own has expired,
// waiting does not help.
func (h *host) clock(t Target) Finding {
	const check = "clock"
	now := h.now()
	text := now.UTC().Format("2006-01-02 15:04:05 MST")
	const do = "set the clock, or let NTP do it; a start works anyway"
	if least := certs.Reference(); now.Before(least.Add(-slack)) {
		return found(check, Warn, do, "%s, but this program is from %s", text, least.UTC().Format(time.DateOnly))
	}
	infos, err := certs.List(filepath.Join(t.DataDir, "certs"), now)
	if err != nil {
		return found(check, OK, "", "%s", text) // no certificates yet
	}
	var theirs, ended []string
	for _, i := range infos {
		if i.NotAfter.IsZero() || now.Before(i.NotAfter) {
			continue
		}
		ended = append(ended, string(i.Name))
		if i.UserSupplied {
			theirs = append(theirs, fmt.Sprintf("%s on %s", i.Name, i.NotAfter.Format(time.DateOnly)))
		}
	}
	switch {
	case len(theirs) > 0:
		return found(check, Fail, "renew what you supplied, or set the clock", "%s; your certificate has expired: %s", text, theirs[0])
	case len(ended) > 0:
		return found(check, Warn, "set the clock if it is wrong; a start renews them", "%s; %d certificates have expired (%s)", text, len(ended), ended[0])
	}
	return found(check, OK, "", "%s", text)
}
