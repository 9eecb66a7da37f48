package external

import (
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
	"github.com/k3s-io/kine/pkg/query"
	kinetls "github.com/k3s-io/kine/pkg/tls"

	"github.com/karve-k8s/karve/internal/redact"
)

var postgres = driver{
	form:    "postgres://USER:PASSWORD@HOST:PORT/DATABASE",
	tools:   "pg_dump, pg_restore and psql",
	parse:   parsePostgres,
	prepare: preparePostgres,
	open:    openPostgres,

	rows:   openPostgresTable,
	poll:   time.Second,
	follow: followPostgres,
	keys:   pgKeyQuery,
	param:  "$",

	// MAX(id) would not use kine_list_query_index.
	rangeIDs: `SELECT DISTINCT ON (name) name AS ikv_name, id, deleted AS ikv_deleted FROM kine
		WHERE name >= ? AND name < ? %s ORDER BY ikv_name ASC, id DESC`,
	listSQL: `
		WITH
		ikv AS (%s),
		ckv AS (SELECT * FROM (%s) AS current_rev, (%s) AS compact_rev),
		mkv AS (SELECT %s FROM kine INNER JOIN ikv USING (id) WHERE (ikv_deleted = 0 OR ?) ORDER BY ikv_name ASC ` + query.LimitToken + `),
		fkv AS (SELECT * FROM mkv UNION ALL SELECT %s WHERE NOT EXISTS (SELECT * FROM mkv))
		SELECT * from ckv, fkv ORDER BY name ASC`,
	compactSQL: "DELETE FROM kine AS kv USING %s WHERE kv.id = ks.id",
	sizeSQL:    "SELECT pg_total_relation_size('kine')",
	startKey:   pgStartKey,

	// One transaction: no other program sees the table without its indexes.
	create: `CREATE TABLE kine (id BIGSERIAL PRIMARY KEY, name text COLLATE "C", created INTEGER, deleted INTEGER,
		create_revision BIGINT, prev_revision BIGINT, ` + leaseColumn + ` INTEGER, value bytea, old_value bytea);
		CREATE INDEX kine_name_index ON kine (name);
		CREATE INDEX kine_name_id_index ON kine (name, id);
		CREATE INDEX kine_id_deleted_index ON kine (id, deleted);
		CREATE INDEX kine_prev_revision_index ON kine (prev_revision);
		CREATE UNIQUE INDEX kine_name_prev_revision_uindex ON kine (name, prev_revision);
		CREATE INDEX kine_list_query_index ON kine (name, id DESC, deleted)`,
	names: "TEXT",
	grant: "GRANT USAGE, CREATE ON SCHEMA NAME TO USER (or for a table that is there, ALTER TABLE kine OWNER TO USER)",
	lock: func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", pgLock)
		return err
	},

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
		return refusal(errReplica)
	}
	return nil
}

// defaultDatabase is the default of kine and k3s.
const defaultDatabase = "kubernetes"

// pgStartKey is the first key that is not before key. No key has a NUL, which PostgreSQL refuses.
func pgStartKey(key string) string {
	if begin, next := strings.CutSuffix(key, "\x00"); next {
		return begin + "\x01"
	}
	return key
}

func openPostgres(dsn string) (*sql.DB, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	return stdlib.OpenDB(*config), nil
}

// postgresURL is the URL with the name of a database.
func postgresURL(rest string) (*url.URL, error) {
	if redact.AtAfterHost(rest) {
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
	if strings.Trim(u.Path, "/") == "" && !query.Has("dbname") && !query.Has("database") {
		u.Path = "/" + defaultDatabase
	}
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

// preparePostgres connects once, and adds the files to the URL.
func preparePostgres(ctx context.Context, rest string, files kinetls.Config) (dsn string, release func(), err error) {
	u, config, err := postgresConfig(rest, files, true)
	if err != nil {
		return "", nil, err
	}
	err = tryPostgres(ctx, config)
	if code(err) == "3D000" { // invalid_catalog_name
		err = createPostgres(ctx, config)
	}
	return u.String(), func() {}, err
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
func connectPostgres(rest string, files kinetls.Config) (*sql.DB, func(), error) {
	_, config, err := postgresConfig(rest, files, false)
	if err != nil {
		return nil, nil, err
	}
	return stdlib.OpenDB(*config), func() {}, nil
}

// tryPostgres connects once.
func tryPostgres(ctx context.Context, config *pgx.ConnConfig) error {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
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
	return refusal(fmt.Errorf("database %q is not there, and cannot be made: %w: let an administrator run CREATE DATABASE %[1]q OWNER %[3]q", config.Database, err, config.User))
}
