package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver of PostgreSQL
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/karve-k8s/karve/test/bench/machine"
)

// A userDatabase is a server of PostgreSQL or MariaDB, or an etcd, that scripts/databases has started, and on which
// Karve keeps its objects. Every data directory has a database, or a prefix, of its own there. Its methods take nil,
// which is the built-in datastore.
type userDatabase struct {
	url  *url.URL      // of PostgreSQL
	dsn  *mysql.Config // of MariaDB
	etcd []string      // URLs

	title, name, version string
	controls             []string // programs of scripts/databases; none: the built-in datastore
}

// parseDatabase reads the endpoint of a server, without the name of a database.
func parseDatabase(endpoint string) (d *userDatabase, err error) {
	d = &userDatabase{}
	switch scheme, rest, _ := strings.Cut(endpoint, "://"); scheme {
	case "postgres":
		d.url, err = url.Parse(endpoint)
	case "mysql":
		d.dsn, err = mysql.ParseDSN(rest)
	default:
		d.etcd = strings.Split(endpoint, ",")
	}
	return d, err
}

// of is the endpoint of a database.
func (d *userDatabase) of(name string) string {
	switch {
	case d.etcd != nil:
		return strings.Join(d.etcd, ",")
	case d.dsn != nil:
		dsn := d.dsn.Clone()
		dsn.DBName = name
		return "mysql://" + dsn.FormatDSN()
	}
	u := *d.url
	u.Path = "/" + name
	return u.String()
}

// options are those of karve for a data directory. The endpoint is in a file there, because every user can see a
// command line.
func (d *userDatabase) options(dir string) ([]string, error) {
	if !d.external() {
		return nil, nil
	}
	name, file := "bench"+filepath.Base(dir), filepath.Join(dir, "bench.yaml")
	// A database can be shared, so the server wants an address at which others reach it.
	options := []string{"--config=" + file, "--advertise-address", "192.0.2.1"}
	if d.etcd != nil {
		options = append(options, "--kube-apiserver-arg", "etcd-prefix=/"+name)
	}
	return options, os.WriteFile(file, fmt.Appendf(nil, "datastore-endpoint: %q\n", d.of(name)), 0o600)
}

// ask sends a statement to the server, and returns the first column of its first row, if it has one.
func (d *userDatabase) ask(ctx context.Context, statement string) (answer string, err error) {
	driver, source := "pgx", ""
	if d.dsn != nil {
		driver, source = "mysql", d.dsn.FormatDSN()
	} else {
		source = d.of("postgres")
	}
	db, err := sql.Open(driver, source)
	if err != nil {
		return "", err
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, statement)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	if rows.Next() {
		err = rows.Scan(&answer)
	}
	return answer, errors.Join(err, rows.Err())
}

func (d *userDatabase) client() (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: d.etcd, Logger: zap.NewNop()})
}

// external tells whether it has processes of its own, which run only while it is measured.
func (d *userDatabase) external() bool { return d != nil && len(d.controls) > 0 }

// start starts the processes, and waits until they answer.
func (d *userDatabase) start(ctx context.Context) error {
	if !d.external() {
		return nil
	}
	if err := d.control(ctx, "start"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		one, cancel := context.WithTimeout(ctx, time.Second)
		version, err := d.versionOf(one)
		cancel()
		if err == nil {
			d.version = version
			return nil
		}
		if pause(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("%s does not answer: %w", d.title, err)
		}
	}
}

// versionOf asks the server for its version. Every member of an etcd has to answer, and to have a leader.
func (d *userDatabase) versionOf(ctx context.Context) (version string, err error) {
	if d.etcd == nil {
		return d.ask(ctx, map[bool]string{true: "SELECT VERSION()", false: "SHOW server_version"}[d.dsn != nil])
	}
	c, err := d.client()
	if err != nil {
		return "", err
	}
	defer c.Close()
	for _, member := range d.etcd {
		status, err := c.Status(ctx, member)
		if err != nil {
			return "", err
		}
		if status.Leader == 0 {
			return "", errors.New("it has no leader")
		}
		version = status.Version
	}
	_, err = c.Get(ctx, "bench") // which needs a quorum
	return version, err
}

// stop ends the processes.
func (d *userDatabase) stop(ctx context.Context) error { return d.control(ctx, "kill") }

// control calls the control programs.
func (d *userDatabase) control(ctx context.Context, verb string) error {
	if !d.external() {
		return nil
	}
	for _, program := range d.controls {
		if out, err := exec.CommandContext(ctx, program, verb).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %s: %w\n%s", d.title, verb, err, out)
		}
	}
	return nil
}

// cpu is the CPU time that the processes have used.
func (d *userDatabase) cpu() (total time.Duration) {
	if !d.external() {
		return 0
	}
	for _, program := range d.controls {
		out, err := exec.Command(program, "pids").Output()
		if err != nil {
			continue
		}
		for _, field := range strings.Fields(string(out)) {
			if pid, err := strconv.Atoi(field); err == nil {
				total += machine.TimeWithChildren(pid)
			}
		}
	}
	return total
}
