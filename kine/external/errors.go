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
