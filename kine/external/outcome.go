package external

import (
	"errors"
	"fmt"
)

// An outcome is what is known of a transaction of writes, or of a call, by its error.
type outcome int

const (
	committed    outcome = iota // there is no error
	notCommitted                // nothing of it is in the table
	unknown                     // the connection has gone when COMMIT may have been sent: never tried again, so that no write conflicts with itself
	silent                      // the database does not answer
)

var (
	// ErrUncertain means that the database may have committed or not.
	ErrUncertain = errors.New("the outcome is unknown")
	// errSilent means that a call was ended because the database does not answer.
	errSilent = errors.New("no answer")
	// errUnsent tags an error of a transaction before COMMIT was sent.
	errUnsent = errors.New("nothing was written")
	// errNotEmpty means that the range of an insert has keys.
	errNotEmpty = errors.New("the datastore is not empty")
	// errLocked means that a transaction has not got the lock.
	errLocked = fmt.Errorf("another server held the lock for writes for %v, or the wait was interrupted; nothing was written", lockLimit)
	// errTakenBack means that a write of a batch is not wanted any more.
	errTakenBack = errors.New("a write was taken back")
	// errBehind means that a transaction would have got a revision that was given out before. The table has gone back in time, or its
	// sequence is behind it.
	errBehind = errors.New("the table lacks revisions that were given out")
	// errClosed is the answer to writes after Close.
	errClosed = errors.New("closed")
)

// outcomeOf is unknown unless the error says more. A statement that the database itself has refused ends its transaction.
func outcomeOf(err error) outcome {
	switch {
	case err == nil:
		return committed
	case errors.Is(err, ErrUncertain):
		return unknown
	case errors.Is(err, errSilent):
		return silent
	case refusedStatement(err):
		return notCommitted
	}
	for _, known := range []error{errUnsent, errNotEmpty, errLocked, errTakenBack, errBehind} {
		if errors.Is(err, known) {
			return notCommitted
		}
	}
	return unknown
}

// afterCut is the error of a transaction whose line was cut because it, or the time of a leader's write (fenced), had ended.
func afterCut(err, cut error, fenced bool) error {
	switch known := outcomeOf(err); {
	case known == committed, refusedStatement(err):
		return err
	case known == notCommitted && fenced:
		return errTakenBack
	}
	return cut
}

// tagged is an error that is also its tag, whose text it does not repeat.
type tagged struct {
	error error
	tag   error
}

func (t tagged) Error() string { return t.error.Error() }

func (t tagged) Is(target error) bool { return target == t.tag }

func (t tagged) Unwrap() error { return t.error }

// refusal is an error that is ErrRefused.
func refusal(err error) error { return tagged{err, ErrRefused} }
