package external

import (
	"context"
	cryptotls "crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/karve-k8s/karve/internal/redact"
)

// ErrRefused means that the database has answered, and that waiting will not change the
// answer: the password is wrong, the database may not be created, or its certificate is not
// trusted.
var ErrRefused = errors.New("refused")

// safe is an error without secrets. It is ErrRefused, and has what helps, if waiting does not change it.
func (e *Database) safe(err error) error {
	if err == nil {
		return nil
	}
	text := e.scrub(err)
	switch {
	case errors.Is(err, ErrRefused):
	case code(err) == "3F000": // invalid_schema_name
		text += ": name a schema in the endpoint by search_path=SCHEMA"
	case isDenied(err):
		text += ": let an administrator run " + e.kind.grant
	case !isAnswer(err):
		return errors.New(text)
	}
	return refusal(errors.New(text))
}

// clean is an error without secrets, with the name of the database. Errors of the caller's pass as they are.
func (e *Database) clean(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	if full := (*NotEmptyError)(nil); errors.As(err, &full) {
		return err
	}
	safe := e.safe(err)
	if !strings.Contains(safe.Error(), e.String()) {
		safe = fmt.Errorf("%s: %w", e, safe)
	}
	if errors.Is(err, ErrUncertain) {
		return tagged{safe, ErrUncertain}
	}
	return safe
}

// explained is an error of a Table, with what helps.
func explained(err error) error {
	switch {
	case isMissing(err):
		return refusal(fmt.Errorf("%w: %w", errNoTable, err))
	case (number(err) == 1105 || number(err) == 1153) && strings.Contains(err.Error(), "max_allowed_packet"): // ER_UNKNOWN_ERROR, ER_NET_PACKET_TOO_LARGE
		return refusal(fmt.Errorf("raise max_allowed_packet in the database, at least until the migration is complete: %w", err))
	}
	return err
}

// isAnswer tells whether an error of a start is an answer that waiting does not change. The classes of SQLSTATE are those of authorization, names of
// databases and of schemas, and what a statement names or may not do. A limit of connections, a start, a failover and the network end.
func isAnswer(err error) bool {
	switch number(err) {
	case 1130: // ER_HOST_NOT_PRIVILEGED: its state is that of any error
		return true
	case 1203, 1226: // ER_TOO_MANY_USER_CONNECTIONS, ER_USER_LIMIT_REACHED
		return false
	}
	return slices.Contains([]string{"28", "3D", "3F", "42"}, class(err)) || errors.As(err, new(*cryptotls.CertificateVerificationError))
}

// alreadyMade recognises what a database answers to CREATE if another transaction makes the same meanwhile: unique_violation in
// PostgreSQL's own catalogue, duplicate_table, duplicate_object, ER_TABLE_EXISTS_ERROR.
func alreadyMade(err error) bool {
	return slices.Contains([]string{"23505", "42P07", "42710"}, code(err)) || number(err) == 1050
}

// isMissing recognises that there is no database, or no table: invalid_catalog_name, undefined_table, ER_BAD_DB_ERROR, ER_NO_SUCH_TABLE.
func isMissing(err error) bool {
	return slices.Contains([]string{"3D000", "42P01"}, code(err)) || slices.Contains([]uint16{1049, 1146}, number(err))
}

// isDenied recognises insufficient_privilege, ER_DBACCESS_DENIED_ERROR, ER_TABLEACCESS_DENIED_ERROR and ER_COLUMNACCESS_DENIED_ERROR.
func isDenied(err error) bool {
	return code(err) == "42501" || slices.Contains([]uint16{1044, 1142, 1143}, number(err))
}

// conflicts recognises that a statement was ended for the sake of another one, and can be tried again:
// deadlock_detected, serialization_failure, ER_LOCK_DEADLOCK, ER_CHECKREAD.
func conflicts(err error) bool {
	return slices.Contains([]string{"40P01", "40001"}, code(err)) || slices.Contains([]uint16{1213, 1020}, number(err))
}

// refusedStatement tells whether the database itself has answered a statement with the error, and goes on.
func refusedStatement(err error) bool {
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		return e.SeverityUnlocalized == "ERROR"
	}
	return number(err) != 0
}

// refusedData tells whether the database has refused what it was given, such as a key with a NUL: another key would be fine. The classes of
// SQLSTATE are those of data exceptions, constraints, limits such as the length of an index' entry, and what triggers raise.
func refusedData(err error) bool {
	return slices.Contains([]string{"22", "23", "44", "45", "54", "P0"}, class(err))
}

// class is that of an error's SQLSTATE.
func class(err error) string {
	state := code(err)
	if e := (*mysql.MySQLError)(nil); errors.As(err, &e) {
		state = string(e.SQLState[:])
	}
	return state[:min(len(state), 2)]
}

func code(err error) string {
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func number(err error) uint16 {
	if e := (*mysql.MySQLError)(nil); errors.As(err, &e) {
		return e.Number
	}
	return 0
}

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
	for _, known := range []error{errUnsent, errLocked, errTakenBack, errBehind} {
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

// errNoTable means that there is no database, or no table in it.
var errNoTable = errors.New("no server has used this database")
