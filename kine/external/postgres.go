package external

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/k3s-io/kine/pkg/drivers/pgsql"
	kinetls "github.com/k3s-io/kine/pkg/tls"
)

var postgres = driver{
	form:    "postgres://USER:PASSWORD@HOST:PORT/DATABASE",
	tools:   "pg_dump, pg_restore and psql",
	parse:   parsePostgres,
	prepare: preparePostgres,
	open:    pgsql.New,

	rows:   openPostgresTable,
	follow: followPostgres,
	keys:   pgKeyQuery,
	param:  "$",

	create: `CREATE TABLE kine (id BIGSERIAL PRIMARY KEY, name text COLLATE "C", created INTEGER, deleted INTEGER,
		create_revision BIGINT, prev_revision BIGINT, ` + leaseColumn + ` INTEGER, value bytea, old_value bytea)`,
	names: "TEXT",
	grant: "GRANT USAGE, CREATE ON SCHEMA NAME TO USER (or for a table that is there, ALTER TABLE kine OWNER TO USER)",
	lock:  fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", pgLock),

	connect: connectPostgres,
	// Autovacuum is nobody's.
	others: `SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND usename IS NOT NULL`,
	raise:  `SELECT setval(pg_get_serial_sequence('kine', 'id'), `,
	follows: `SELECT setval(pg_get_serial_sequence('kine', 'id'), id) FROM (SELECT MAX(id) AS id FROM kine) AS newest
		WHERE id > COALESCE(` + pgLast + `, 0)`,
	numbered: true,
	primary:  postgresPrimary,
}

// postgresPrimary refuses a standby: servers are connected to its primary.
func postgresPrimary(ctx context.Context, db *sql.DB) error {
	var standby bool
	if err := db.QueryRowContext(ctx, `SELECT pg_is_in_recovery()`).Scan(&standby); err != nil {
		return err
	}
	if standby {
		return refusal{errReplica}
	}
	return nil
}

// defaultDatabase is the default of kine and k3s.
const defaultDatabase = "kubernetes"

// postgresURL is the URL with the name of the database as a parameter: kine's driver reads that of the path in lower case.
func postgresURL(rest string) (*url.URL, error) {
	if AtAfterHost(rest) {
		return nil, errAt
	}
	u, err := url.Parse("postgres://" + rest)
	if err != nil { // it contains the URL
		return nil, errors.New("not a URL; special characters of a password are percent-encoded in one")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errors.New("not a URL; special characters of a parameter are percent-encoded in one")
	}
	if !query.Has("dbname") && !query.Has("database") {
		query.Set("dbname", cmp.Or(strings.TrimLeft(u.Path, "/"), defaultDatabase))
	}
	u.Path, u.RawQuery = "/", query.Encode()
	return u, nil
}

func parsePostgres(rest string) (where string, secrets []string, err error) {
	u, err := postgresURL(rest)
	if err != nil {
		return "", nil, err
	}
	query := u.Query()
	secrets = slices.Concat(userSecrets(u), query["password"], query["sslpassword"])
	config, err := pgx.ParseConfig(u.String())
	if err != nil {
		return "", secrets, err
	}
	public := url.URL{Scheme: "postgres", User: url.User(config.User), Host: u.Host, Path: "/" + config.Database}
	return public.String(), append(secrets, config.Password), nil
}

// userSecrets returns the password in a URL, decoded and as written.
func userSecrets(u *url.URL) []string {
	password, there := u.User.Password()
	if !there {
		return nil
	}
	_, written, _ := strings.Cut(u.User.String(), ":")
	return []string{password, written}
}

// preparePostgres connects once, because kine's driver makes 300 attempts whatever the answer
// is. It adds the files to the URL as the driver does.
func preparePostgres(ctx context.Context, rest string, files kinetls.Config) (_ drivers.Config, release func(), err error) {
	u, config, err := postgresConfig(rest, files, true)
	if err != nil {
		return drivers.Config{}, nil, err
	}
	err = withPostgres(ctx, config, isFree)
	if code(err) == "3D000" { // invalid_catalog_name
		err = createPostgres(ctx, config)
	}
	return drivers.Config{DataSourceName: strings.TrimPrefix(u.String(), "postgres://")}, func() {}, err
}

// postgresConfig is the URL with the files, and its configuration. For a server, it is that of a primary unless the user has decided.
func postgresConfig(rest string, files kinetls.Config, server bool) (*url.URL, *pgx.ConnConfig, error) {
	u, err := postgresURL(rest)
	if err != nil {
		return nil, nil, err
	}
	query := u.Query()
	for name, file := range map[string]string{"sslrootcert": files.CAFile, "sslcert": files.CertFile, "sslkey": files.KeyFile} {
		if file == "" {
			continue
		}
		if !query.Has(name) {
			query.Set(name, file)
		}
		if !query.Has("sslmode") {
			query.Set("sslmode", "verify-full")
		}
	}
	if server && !query.Has("target_session_attrs") && os.Getenv("PGTARGETSESSIONATTRS") == "" {
		query.Set("target_session_attrs", "read-write")
	}
	u.RawQuery = query.Encode()
	config, err := pgx.ParseConfig(u.String())
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return u, config, nil
}

// connectPostgres opens the database, and does not create it.
func connectPostgres(rest string, files kinetls.Config, server bool) (*sql.DB, func(), error) {
	_, config, err := postgresConfig(rest, files, server)
	if err != nil {
		return nil, nil, err
	}
	return stdlib.OpenDB(*config), func() {}, nil
}

func withPostgres(ctx context.Context, config *pgx.ConnConfig, do func(context.Context, *pgx.Conn) error) error {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	return errors.Join(do(ctx, conn), conn.Close(ctx))
}

// freeLimit is how long a start waits for others' transactions.
const freeLimit = time.Second

// isFree returns an error if somebody has had a transaction open for freeLimit that has written into kine's table. kine's driver creates the
// indexes at every start, if they do not exist. That waits for such a transaction without end, and the writes of all servers wait behind it.
func isFree(ctx context.Context, conn *pgx.Conn) error {
	var first []string
	for began := time.Now(); ; {
		rows, _ := conn.Query(ctx, `SELECT virtualtransaction FROM pg_locks WHERE relation = to_regclass('kine') AND mode = 'RowExclusiveLock' AND granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
		now, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		if first == nil {
			first = now
		}
		first = slices.DeleteFunc(first, func(open string) bool { return !slices.Contains(now, open) })
		switch {
		case len(first) == 0:
			return nil
		case time.Since(began) > freeLimit:
			return fmt.Errorf("another program has had a transaction open for %v that has written into the table kine; wait for its end, or end it", freeLimit)
		}
		select {
		case <-time.After(freeLimit / 20):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// createPostgres creates the database from the one that always exists.
func createPostgres(ctx context.Context, config *pgx.ConnConfig) error {
	other := config.Copy()
	other.Database = "postgres"
	conn, err := pgx.ConnectConfig(ctx, other)
	if err == nil {
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{config.Database}.Sanitize())
	}
	if c := code(err); err == nil || c == "42P04" || c == "23505" { // another server was faster
		return nil
	}
	return refusal{fmt.Errorf("database %q is not there, and cannot be made: %w: let an administrator run CREATE DATABASE %[1]q OWNER %[3]q", config.Database, err, config.User)}
}
