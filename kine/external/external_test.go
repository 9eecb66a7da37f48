package external

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/k3s-io/kine/pkg/server"
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

func anExternal(b server.Backend) *Backend {
	return &Backend{
		external: &Database{kind: &postgres, where: "postgres://u@h/db", secrets: []string{"s3cret"}},
		backend:  b, cancel: func() {}, release: func() {},
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
