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
		"postgres://":                             "postgres://me@/kubernetes",
		"mysql://u:s3cret@tcp(h:3306)/db":         "mysql://u@tcp(h:3306)/db",
		"mysql://u:s3cret@unix(/run/x.sock)/":     "mysql://u@unix(/run/x.sock)/kubernetes",
		"mysql://":                                "mysql://root@unix(/var/run/mysqld/mysqld.sock)/kubernetes",
		"nats://u:s3cret@h:4222?bucket=b":         "nats://h:4222",
		"nats://s3crettoken@h:4222,nats://i:4222": "nats://h:4222,nats://i:4222",
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
		"nats://u:s3cret@h,u:s3cret@i":             "nats://",
		"nats://u:s3cret@h?history=9":              "history",
		"nats://u:s3%20cret@h":                     "credsFile",
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
	tx, err := d.BeginTx(t.Context(), nil)
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
	rev   int64
	kv    *server.KeyValue
	kvs   []*server.KeyValue
	count int64
	ok    bool
	err   error
}

func (a answers) Update(context.Context, string, []byte, int64, int64) (int64, *server.KeyValue, bool, error) {
	return a.rev, a.kv, a.ok, a.err
}

func (a answers) Delete(context.Context, string, int64) (int64, *server.KeyValue, bool, error) {
	return a.rev, a.kv, a.ok, a.err
}

func (a answers) List(context.Context, string, string, int64, int64, bool) (int64, []*server.KeyValue, error) {
	return a.rev, a.kvs, a.err
}

func (a answers) Count(context.Context, string, string, int64) (int64, int64, error) {
	return a.rev, a.count, a.err
}

// What kine's store reports as something else than the failure that it is.
func TestNoFailureLooksLikeAnAnswer(t *testing.T) {
	live := &server.KeyValue{Key: "/a", Value: []byte("v"), ModRevision: 5}
	ctx := t.Context()
	for name, c := range map[string]struct {
		backend answers
		call    func(b *Backend) error
		want    codes.Code
	}{
		"an update that the database refuses": {answers{kv: live}, func(b *Backend) error { _, _, _, err := b.Update(ctx, "/a", nil, 5, 0); return err }, codes.Unavailable},
		"an update of an old revision":        {answers{kv: live}, func(b *Backend) error { _, _, _, err := b.Update(ctx, "/a", nil, 4, 0); return err }, codes.OK},
		"a delete that the database refuses":  {answers{kv: live}, func(b *Backend) error { _, _, _, err := b.Delete(ctx, "/a", 5); return err }, codes.Unavailable},
		"a list cut short":                    {answers{kvs: []*server.KeyValue{live}, count: 2}, func(b *Backend) error { _, _, err := b.List(ctx, "/", "0", 0, 0, false); return err }, codes.Unavailable},
		"a whole list":                        {answers{kvs: []*server.KeyValue{live}, count: 1}, func(b *Backend) error { _, _, err := b.List(ctx, "/", "0", 0, 0, false); return err }, codes.OK},
		"a page":                              {answers{kvs: []*server.KeyValue{live}, count: 9}, func(b *Backend) error { _, _, err := b.List(ctx, "/", "0", 1, 0, false); return err }, codes.OK},
		"a lost connection":                   {answers{err: errors.New("dial s3cret")}, func(b *Backend) error { _, _, err := b.Count(ctx, "/", "0", 0); return err }, codes.Unavailable},
	} {
		if err := c.call(anExternal(c.backend)); status.Code(err) != c.want || err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %v and no password", name, err, c.want)
		}
	}
	if _, kv, ok, err := anExternal(answers{ok: true}).Delete(ctx, "/never", 0); kv != nil || ok || err != nil {
		t.Errorf("delete what was never there: %v, %v, %v, want nil and false", kv, ok, err)
	}
	mark := &server.KeyValue{Key: "/a", ModRevision: 6}
	if _, kv, ok, err := anExternal(answers{kv: mark}).Delete(ctx, "/a", 5); kv != nil || ok || err != nil {
		t.Errorf("delete what somebody else has deleted: %v, %v, %v, want nil and false", kv, ok, err)
	}
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
