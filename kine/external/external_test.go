package external

import (
	"errors"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Setenv("PGUSER", "me")
	for endpoint, want := range map[string]string{
		"postgres://u:s3cret@h:5432/db":                   "postgres://u@h:5432/db",
		"postgresql://u:s%2Fcret@h/KARVE?sslmode=disable": "postgres://u@h/KARVE",
		"postgres://u:s3cret@h/?dbname=Other":             "postgres://u@h/Other",
		"postgres://":                                     "postgres://me@/kubernetes",
		"mysql://u:s3cret@tcp(h:3306)/db":                 "mysql://u@tcp(h:3306)/db",
		"mysql://u:s3cret@unix(/run/x.sock)/":             "mysql://u@unix(/run/x.sock)/kubernetes",
		"mysql://":                                        "mysql://root@unix(/var/run/mysqld/mysqld.sock)/kubernetes",
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

func anExternal() *Backend {
	return &Backend{
		external: &Database{kind: &postgres, where: "postgres://u@h/db", secrets: []string{"s3cret"}},
		cancel:   func() {}, release: func() {},
	}
}

func TestStateIsReportedWhenItChanges(t *testing.T) {
	var told []bool
	d, gone := &table{newest: 7}, errors.New("gone")
	b := kineOn(t, d)
	b.state = func(err error) { told = append(told, err == nil) }
	for _, d.cut = range []error{nil, gone, gone, nil, nil, gone} {
		b.List(t.Context(), "/", "0", 0, 0, false)
	}
	if len(told) != 3 || told[0] || !told[1] || told[2] {
		t.Errorf("told %v, want away, back, away", told)
	}
}
