package external

import (
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/karve-k8s/karve/internal/eventually"
)

func TestADatabaseWithoutLocksIsRefused(t *testing.T) {
	for _, number := range []uint16{1105, 1235} {
		err := noLock(&mysql.MySQLError{Number: number, Message: "prohibits use of GET_LOCK"})
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "pxc_strict_mode") || !strings.Contains(err.Error(), "prohibits") {
			t.Errorf("error %d: %v, want a refusal with a remedy", number, err)
		}
	}
	if err := noLock(errors.New("gone")); err == nil || errors.Is(err, ErrRefused) {
		t.Errorf("%v, want an error that waiting may cure", err)
	}
}

// A transaction that does not get the lock writes nothing.
func TestDatabaseWritesOnlyWithTheLock(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		a, b := db.open(t), db.open(t)
		var waiting *sql.DB
		switch table := b.writer.table.(type) {
		case *mysqlTable:
			table.wait = 0
			waiting = table.db
		case *pgTable:
			waiting = table.db
			var limit string
			if err := waiting.QueryRowContext(t.Context(), "SHOW lock_timeout").Scan(&limit); err != nil || limit != lockLimit.String() {
				t.Errorf("a transaction waits for %s, %v, want %v", limit, err, lockLimit)
			}
			if _, err := waiting.ExecContext(t.Context(), "SET lock_timeout = 50"); err != nil { // on the table's only connection
				t.Fatal(err)
			}
		}
		unlock := a.holdLock(t)
		insert := func(key string) error {
			_, err := b.writer.table.insert(t.Context(), []*write{{ctx: t.Context(), key: key, created: true}}, 0)
			return err
		}
		if err := insert("/locked/1"); !errors.Is(err, errLocked) || outcomeOf(err) != notCommitted {
			t.Errorf("a write: %v, want that the lock is held", err)
		}
		for answer := range slices.Values([]<-chan written{insertLater(t, b, "/locked/2"), insertLater(t, b, "/locked/3")}) {
			if got := eventually.Receive(t, "an answer", answer); !errors.Is(got.err, errLocked) || outcomeOf(got.err) != notCommitted {
				t.Errorf("a write: %+v, want that it is known not to be written", got)
			}
		}
		var rows int
		if err := waiting.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM kine WHERE name LIKE '/locked/%'").Scan(&rows); err != nil || rows != 0 {
			t.Errorf("%d rows, %v, want none", rows, err)
		}
		unlock()
		if err := insert("/locked/1"); err != nil {
			t.Errorf("a write after the lock is free: %v", err)
		}
	})
}

func insertLater(t *testing.T, b *Backend, key string) <-chan written {
	answer := make(chan written, 1)
	go func() { answer <- b.writer.insert(&write{ctx: t.Context(), key: key, created: true}) }()
	return answer
}
