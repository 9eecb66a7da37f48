package external

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"strings"
	"testing"

	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/server"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/internal/eventually"
)

func TestParse(t *testing.T) {
	t.Setenv("PGUSER", "me")
	for endpoint, want := range map[string]string{
		"postgres://u:s3cret@h:5432/db":                   "postgres://u@h:5432/db",
		"postgresql://u:s%2Fcret@h/KARVE?sslmode=disable": "postgres://u@h/karve",
		"postgres://":                         "postgres://me@/kubernetes",
		"mysql://u:s3cret@tcp(h:3306)/db":     "mysql://u@tcp(h:3306)/db",
		"mysql://u:s3cret@unix(/run/x.sock)/": "mysql://u@unix(/run/x.sock)/kubernetes",
		"mysql://":                            "mysql://root@unix(/var/run/mysqld/mysqld.sock)/kubernetes",
	} {
		e, err := Parse(endpoint)
		if err != nil || e.String() != want {
			t.Errorf("%s: %v, %v, want %s", endpoint, e, err, want)
		}
	}
	for endpoint, want := range map[string]string{
		"postgres://u:s3cret@h:port/db":            "not a URL",
		"postgres://u:s3cr%t@h/db":                 "not a URL",
		"postgres://u:s3cret@h/db?sslmode=perhaps": "sslmode",
		"mysql://u:s3cret@h:3306/db":               "@tcp(",
		"mysql://u:s3/cret@tcp(h:3306)":            "@tcp(",
		"mysql://u:s3cret@tcp(h:3306)":             "slash",
	} {
		_, err := Parse(endpoint)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3") {
			t.Errorf("%s: %v, want %q and no password", endpoint, err, want)
		}
	}
}

// brokenDB is a database whose commits and rollbacks fail.
type brokenDB struct{}

var errCommit = errors.New("the connection is gone")

func (brokenDB) Connect(context.Context) (sqldriver.Conn, error) { return brokenDB{}, nil }
func (brokenDB) Driver() sqldriver.Driver                        { return nil }
func (brokenDB) Prepare(string) (sqldriver.Stmt, error)          { return nil, errCommit }
func (brokenDB) Close() error                                    { return nil }
func (brokenDB) Begin() (sqldriver.Tx, error)                    { return brokenDB{}, nil }
func (brokenDB) Commit() error                                   { return errCommit }
func (brokenDB) Rollback() error                                 { return errCommit }

// commit is what kine's compaction does, but for the compaction.
func commit(t *testing.T) error {
	d := &generic.Generic{DB: sql.OpenDB(brokenDB{})}
	defer d.DB.Close()
	tx, err := d.BeginTx(t.Context(), &sql.TxOptions{})
	if err != nil {
		return err
	}
	defer tx.MustRollback()
	tx.MustCommit()
	return nil
}

// committer is a backend whose compaction is that.
type committer struct {
	server.Backend
	t *testing.T
}

func (c committer) Compact(context.Context, int64) (int64, error) { return 0, commit(c.t) }

func anExternal(b server.Backend) *Backend {
	return &Backend{
		external: &Database{kind: &postgres, where: "postgres://u@h/db", secrets: []string{"s3cret"}},
		backend:  b, failed: make(chan error, 1), cancel: func() {}, release: func() {},
	}
}

// kine ends the process when a commit fails. Here a compaction fails, and what
// kine does in goroutines of its own is an error of the part.
func TestACommitThatFailsIsAnError(t *testing.T) {
	catchFatal()
	previous := logrus.StandardLogger().ExitFunc
	logrus.StandardLogger().ExitFunc = func(int) { t.Error("the process would have ended") }
	defer func() { logrus.StandardLogger().ExitFunc = previous }()

	b := anExternal(committer{t: t})
	_, err := b.Compact(t.Context(), 1)
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), errCommit.Error()) {
		t.Errorf("compact: %v, want Unavailable and %q", err, errCommit)
	}
	select {
	case err := <-b.Failed():
		t.Errorf("the part failed of a compaction: %v", err)
	default:
	}

	running.Lock()
	running.all = map[*Backend]bool{b: true}
	running.Unlock()
	defer b.Close()
	ended := make(chan bool)
	go func() {
		defer close(ended)
		commit(t)
		t.Error("went on after a commit that failed")
	}()
	<-ended
	if err := eventually.Receive(t, "the failure is reported", b.Failed()); !strings.Contains(err.Error(), errCommit.Error()) {
		t.Errorf("failed: %v, want %q", err, errCommit)
	}
}

// Fatal of anybody else ends the process as ever.
func TestFatalOfOthers(t *testing.T) {
	catchFatal()
	exited := 0
	previous := logrus.StandardLogger().ExitFunc
	logrus.StandardLogger().ExitFunc = func(code int) { exited = code }
	defer func() { logrus.StandardLogger().ExitFunc = previous }()
	logrus.Fatal("not kine")
	if exited != 1 {
		t.Errorf("exit code %d, want 1", exited)
	}
}

// answers is a backend that answers what it is told to.
type answers struct {
	server.Backend
	err error
}

func (a answers) Count(context.Context, string, string, int64) (int64, int64, error) {
	return 0, 0, a.err
}

func TestStateIsReportedWhenItChanges(t *testing.T) {
	var told []bool
	a := &answers{err: errors.New("gone")}
	b := anExternal(a)
	b.state = func(err error) { told = append(told, err == nil) }
	for _, err := range []error{nil, a.err, a.err, nil, nil, a.err} {
		a.err = err
		b.Count(t.Context(), "/", "0", 0)
	}
	if len(told) != 3 || told[0] || !told[1] || told[2] {
		t.Errorf("told %v, want away, back, away", told)
	}
}
