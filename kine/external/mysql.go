package external

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/tls"
	"github.com/sirupsen/logrus"
)

var mySQL = driver{
	form:    "mysql://USER:PASSWORD@tcp(HOST:PORT)/DATABASE",
	tools:   "mysqldump and mysql (mariadb-dump and mariadb)",
	parse:   parseMySQL,
	prepare: prepareMySQL,
	open:    openMySQL,

	rows:       openMySQLTable,
	poll:       100 * time.Millisecond,
	keys:       mysqlKeyQuery,
	param:      "?",
	rangeIDs:   generic.BetweenNameSQL,
	listSQL:    generic.ListFmt,
	compactSQL: "DELETE kv FROM kine AS kv INNER JOIN %s ON kv.id = ks.id",
	sizeSQL: `SELECT SUM(data_length + index_length) FROM information_schema.TABLES
		WHERE table_schema = DATABASE() AND table_name = 'kine'`,

	// kine's own column name is compared without regard to case, and takes ASCII only.
	create: `CREATE TABLE kine (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, name VARBINARY(630), created INTEGER, deleted INTEGER,
		create_revision BIGINT UNSIGNED, prev_revision BIGINT UNSIGNED, ` + leaseColumn + ` INTEGER, value MEDIUMBLOB, old_value MEDIUMBLOB,
		INDEX kine_name_index (name), INDEX kine_name_id_index (name, id), INDEX kine_id_deleted_index (id, deleted),
		INDEX kine_prev_revision_index (prev_revision), UNIQUE INDEX kine_name_prev_revision_uindex (name, prev_revision))`,
	names:   "VARBINARY",
	grant:   "GRANT ALL ON DATABASE.* TO USER",
	lock:    lockMySQL,
	connect: connectMySQL,
	primary: mysqlPrimary,
	others:  `SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <> CONNECTION_ID()`,
}

// The driver prints errors of connections on standard error by default.
func init() { mysql.SetLogger(mysqlLog{}) }

type mysqlLog struct{}

func (mysqlLog) Print(v ...any) { logrus.Debug(append([]any{"mysql: "}, v...)...) }

// mysqlConfig reads a DSN; an empty one is kine's default.
func mysqlConfig(rest string) (*mysql.Config, error) {
	if rest == "" {
		rest = "root@unix(/var/run/mysqld/mysqld.sock)/"
	}
	config, err := mysql.ParseDSN(rest)
	if err != nil {
		return nil, err
	}
	if config.DBName == "" {
		config.DBName = defaultDatabase
	}
	return config, nil
}

func parseMySQL(rest string) (where string, secrets []string, err error) {
	config, err := mysqlConfig(rest)
	if err != nil {
		// In a malformed DSN, parts of a password may be taken for something else, and quoted.
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			_, password, _ := strings.Cut(rest[:at], ":")
			for _, part := range append(strings.FieldsFunc(password, func(r rune) bool { return strings.ContainsRune("/@:()?&=", r) }), password) {
				if part != "" && strings.Contains(err.Error(), part) {
					return "", nil, errors.New("not a DSN; a password is written as it is in one, and a host in parentheses after its network")
				}
			}
		}
		return "", nil, err
	}
	return fmt.Sprintf("mysql://%s@%s(%s)/%s", config.User, config.Net, config.Addr, config.DBName), []string{config.Passwd}, nil
}

var tlsConfigs atomic.Int64

// prepareMySQL registers the TLS configuration, because a DSN can only name one.
func prepareMySQL(ctx context.Context, rest string, files tls.Config) (dsn string, release func(), err error) {
	dsn, config, release, err := securedMySQL(rest, files)
	if err != nil {
		return "", nil, err
	}
	err = tryMySQL(ctx, config)
	if number(err) == 1049 { // ER_BAD_DB_ERROR
		err = createMySQL(ctx, config)
	}
	if err != nil {
		release()
	}
	return dsn, release, err
}

// lockMySQL takes the lock until the connection ends.
func lockMySQL(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, fmt.Sprintf(mysqlTake, int(lockLimit.Seconds()))); err != nil {
		return err
	}
	return mysqlLocked(tx.QueryRowContext(ctx, mysqlHas))
}

func openMySQL(dsn string) (*sql.DB, error) {
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// securedMySQL is the DSN with the files, its configuration, and what removes their registration.
func securedMySQL(rest string, files tls.Config) (dsn string, _ *mysql.Config, release func(), err error) {
	config, err := mysqlConfig(rest)
	if err != nil {
		return "", nil, nil, err
	}
	secured, err := files.ClientConfig()
	if err != nil {
		return "", nil, nil, refusal(err)
	}
	release = func() {}
	if secured != nil && (config.TLSConfig == "" || config.TLSConfig == "false") {
		config.TLSConfig = fmt.Sprintf("karve-%d", tlsConfigs.Add(1))
		release = func() { mysql.DeregisterTLSConfig(config.TLSConfig) }
		if err := mysql.RegisterTLSConfig(config.TLSConfig, secured); err != nil {
			return "", nil, nil, err
		}
	}
	config.RejectReadOnly = true // the primary may be elsewhere
	if config.Params == nil {
		config.Params = map[string]string{}
	}
	// Without strict mode, the database stores a part of a key that is too long. Without autocommit, a read sees what its connection saw first.
	config.Params["sql_mode"] = "CONCAT(" + cmp.Or(config.Params["sql_mode"], "@@sql_mode") + ", ',STRICT_TRANS_TABLES')"
	config.Params["autocommit"] = "1"
	config.InterpolateParams = true // without it, each query is prepared and closed: three packets instead of one
	dsn = config.FormatDSN()
	if _, err := mysql.ParseDSN(dsn); err != nil && config.Collation != "" {
		// Parameters cannot be quoted in some multibyte character sets. The columns of the table have their own.
		config.Collation = ""
		dsn = config.FormatDSN()
	}
	if config, err = mysql.ParseDSN(dsn); err != nil { // looks the name up
		release()
		return "", nil, nil, err
	}
	return dsn, config, release, nil
}

// connectMySQL opens the database, and does not create it.
func connectMySQL(rest string, files tls.Config) (*sql.DB, func(), error) {
	_, config, release, err := securedMySQL(rest, files)
	if err != nil {
		return nil, nil, err
	}
	// 0 lets the driver ask the server for its limit, and send a longer statement in parts. The server refuses these with
	// its reason. A packet that is too long may only end the connection.
	config.MaxAllowedPacket = 0
	connector, err := mysql.NewConnector(config)
	if err != nil {
		release()
		return nil, nil, err
	}
	return sql.OpenDB(connector), release, nil
}

// mysqlPrimary refuses a replica, because servers are connected to its primary, and a user who does not see the
// connections of others.
func mysqlPrimary(ctx context.Context, db *sql.DB) error {
	var replica bool
	if err := db.QueryRowContext(ctx, `SELECT @@global.read_only NOT IN ('0', 'OFF')`).Scan(&replica); err != nil {
		return err
	}
	if replica {
		return refusal(errReplica)
	}
	// PROCESSLIST leaves out what the user may not see, without an error. This table needs the same privilege, and has one.
	var transactions int
	err := db.QueryRowContext(ctx, `SELECT COUNT(*) FROM information_schema.INNODB_TRX`).Scan(&transactions)
	if number(err) == 1227 { // ER_SPECIFIC_ACCESS_DENIED_ERROR
		return refusal(fmt.Errorf("a server that uses it as another user could not be seen: let an administrator run GRANT PROCESS ON *.* TO this user (%w)", err))
	}
	return err
}

func tryMySQL(ctx context.Context, config *mysql.Config) error {
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	defer db.Close()
	var name, isolation string
	var replica bool
	// MariaDB and MySQL name it differently.
	row := db.QueryRowContext(ctx, `SHOW SESSION VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation')`)
	if err := row.Scan(&name, &isolation); err != nil {
		return err
	}
	if isolation == "READ-UNCOMMITTED" {
		return refusal(fmt.Errorf("its transactions see what others have not committed: run SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ, and remove %s from its configuration", name))
	}
	if err := db.QueryRowContext(ctx, `SELECT @@global.read_only NOT IN ('0', 'OFF')`).Scan(&replica); err != nil {
		return err
	}
	if replica {
		return errors.New("it is read-only, as a replica is")
	}
	return nil
}

func createMySQL(ctx context.Context, config *mysql.Config) error {
	other := config.Clone()
	other.DBName = ""
	connector, err := mysql.NewConnector(other)
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	defer db.Close()
	if _, err = db.ExecContext(ctx, "CREATE DATABASE IF NOT EXISTS `"+strings.ReplaceAll(config.DBName, "`", "``")+"`"); err != nil {
		return fmt.Errorf("database %q is not there, and cannot be made: %w", config.DBName, err)
	}
	return nil
}
