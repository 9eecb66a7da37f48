package external

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/karve-k8s/karve/internal/eventually"
)

// A MariaDB that becomes read-only keeps no connection, as the address may be that of another one by then.
func TestDatabaseLeavesAReadOnlyMySQL(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		if db.kind != "mysql" {
			t.Skip("of MySQL")
		}
		db.open(t)
		other := db.foreign(t)
		config, err := mysql.ParseDSN(strings.TrimPrefix(db.endpoint, "mysql://"))
		if err != nil {
			t.Fatal(err)
		}
		config.User, config.DBName = "blind", "migrate"+config.DBName // others may always write
		db.endpoint = "mysql://" + config.FormatDSN()
		b, ctx := db.started(t), t.Context()
		connection := func() (id int64) {
			if err := b.writer.table.primary().QueryRow("SELECT CONNECTION_ID()").Scan(&id); err != nil {
				t.Fatal(err)
			}
			return id
		}
		first := connection()
		other.run("SET GLOBAL read_only = 1")
		t.Cleanup(func() { other.run("SET GLOBAL read_only = 0") })
		if _, err := b.Create(ctx, "/keys/a", nil, 0); err == nil || connection() == first {
			t.Errorf("a write: %v, and the connection stays", err)
		}
		e, err := Parse(db.endpoint)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := e.Open(ctx, Options{}); err == nil || !strings.Contains(err.Error(), "read-only") {
			t.Errorf("a start: %v, %v", b, err)
		}
		other.run("SET GLOBAL read_only = 0")
		if _, err := b.Create(ctx, "/keys/a", nil, 0); err != nil {
			t.Error(err)
		}
	})
}

// A PostgreSQL that is read-only is no primary, for writes and for reads.
func TestDatabaseLeavesAReadOnlyPostgreSQL(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		if db.kind != "postgres" {
			t.Skip("of PostgreSQL")
		}
		b, other, ctx := db.started(t), db.foreign(t), t.Context()
		var name string
		if err := other.db.QueryRow("SELECT quote_ident(current_database())").Scan(&name); err != nil {
			t.Fatal(err)
		}
		other.run("ALTER DATABASE " + name + " SET default_transaction_read_only = on")
		other.endOthers(db.kind)
		eventually.Nil(t, "no connection", func() error {
			_, err := b.Create(ctx, fmt.Sprintf("/keys/%d", time.Now().UnixNano()), nil, 0)
			if err == nil || !strings.Contains(err.Error(), "read only connection") {
				return fmt.Errorf("a write: %v", err)
			}
			if _, _, err = b.List(ctx, "/", "0", 0, 0, false); err == nil {
				return fmt.Errorf("a list is answered")
			}
			return nil
		})
		other.run("BEGIN READ WRITE; ALTER DATABASE " + name + " RESET default_transaction_read_only; COMMIT")
		eventually.Nil(t, "a write", func() error {
			_, err := b.Create(ctx, "/keys/again", nil, 0)
			return err
		})
	})
}

// The user's parameters and the server's defaults weaken no write and no read of MySQL.
func TestDatabaseSessionsOfMySQL(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		if db.kind != "mysql" {
			t.Skip("of MySQL")
		}
		for _, parameters := range []string{"", "?sql_mode=%27%27&autocommit=0"} {
			lax := db
			lax.endpoint += parameters
			b := lax.started(t)
			if rev, err := b.Create(t.Context(), "/keys/"+strings.Repeat("x", 1000), nil, 0); err == nil {
				t.Errorf("%s: a name that is too long is acknowledged at %d", parameters, rev)
			}
			var autocommit bool
			if err := b.reads.QueryRow("SELECT @@autocommit").Scan(&autocommit); err != nil || !autocommit {
				t.Errorf("%s: autocommit is %v, %v", parameters, autocommit, err)
			}
		}
		db.endpoint += "?tx_isolation=%27READ-UNCOMMITTED%27"
		e, err := Parse(db.endpoint)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := e.Open(t.Context(), Options{}); err == nil || !strings.Contains(err.Error(), "not committed") {
			t.Errorf("READ-UNCOMMITTED: %v, %v, want a refusal", b, err)
		}
	})
}
