package logbridge

import "strings"

// Noise is a message of a library that is known to be harmless here. It is
// written at debug, with the reason in the field "demoted".
type Noise struct {
	// Prefix is how the message begins. It must not be empty.
	Prefix string
	// Error is a part of the error that comes with it; empty: any error or none.
	// (Much of Kubernetes' log has the message "Unhandled Error".)
	Error string
	// Reason says why nobody needs to act on it.
	Reason string
}

// Demote is the table of warnings and errors that are written at debug. Keep it
// short: a row that is too broad hides the next real problem.
var Demote = []Noise{}

func harmless(table []Noise, message, errText string) (reason string, ok bool) {
	for _, n := range table {
		if n.Prefix != "" && strings.HasPrefix(message, n.Prefix) && strings.Contains(errText, n.Error) {
			return n.Reason, true
		}
	}
	return "", false
}
