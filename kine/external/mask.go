package external

import (
	"errors"
	"slices"
	"strings"

	"github.com/karve-k8s/karve/internal/redact"
)

// errAt is the error for a URL for which redact.AtAfterHost holds.
var errAt = errors.New("not a URL; special characters are percent-encoded in one: an at sign after the host as %40, and in a password also a slash (%2F), a question mark (%3F) and a number sign (%23)")

// scrub is the text of an error in one line, each of its lines once, and without secrets. A driver that tries a
// host with and without TLS says twice that nobody listens.
func (e *Database) scrub(err error) string {
	var lines []string
	for line := range strings.Lines(redact.Known(err.Error(), e.secrets)) {
		if line = strings.Join(strings.Fields(line), " "); line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, " ")
}
