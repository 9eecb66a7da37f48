package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver of PostgreSQL
)

// A userDatabase is a server of PostgreSQL, MySQL or MariaDB on which Karve keeps its objects. Every data
// directory has a database of its own there.
type userDatabase struct {
	scheme string
	url    *url.URL      // of PostgreSQL
	dsn    *mysql.Config // of MySQL

	mu   sync.Mutex
	made map[string]string // the names of the databases, by data directory
}

// parseDatabase reads the endpoint of a server, without the name of a database. No error contains it,
// because it may have a password.
func parseDatabase(endpoint string) (*userDatabase, error) {
	scheme, rest, _ := strings.Cut(endpoint, "://")
	d := &userDatabase{scheme: scheme, made: map[string]string{}}
	var err error
	switch scheme {
	case "postgres":
		if d.url, err = url.Parse(endpoint); err == nil && strings.Trim(d.url.Path, "/") != "" {
			return nil, errors.New("it names a database: each round makes a new one")
		}
	case "mysql":
		if d.dsn, err = mysql.ParseDSN(rest); err == nil && d.dsn.DBName != "" {
			return nil, errors.New("it names a database: each round makes a new one")
		}
	default:
		err = errors.New("another kind")
	}
	if err != nil {
		return nil, errors.New("want postgres://USER:PASSWORD@HOST:PORT/ or mysql://USER:PASSWORD@tcp(HOST:PORT)/")
	}
	return d, nil
}

// endpoint is that of the database for a data directory.
func (d *userDatabase) endpoint(dir string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	name := d.made[dir]
	if name == "" {
		name = fmt.Sprintf("bench%d", time.Now().UnixNano())
		d.made[dir] = name
	}
	return d.of(name)
}

func (d *userDatabase) of(name string) string {
	if d.dsn != nil {
		dsn := d.dsn.Clone()
		dsn.DBName = name
		return "mysql://" + dsn.FormatDSN()
	}
	u := *d.url
	u.Path = "/" + name
	return u.String()
}

// option writes a file of options into a data directory, because every user can see a command line, and returns
// the option that names it.
func (d *userDatabase) option(dir string) (string, error) {
	file := filepath.Join(dir, "bench.yaml")
	return "--config=" + file, os.WriteFile(file, fmt.Appendf(nil, "datastore-endpoint: %q\n", d.endpoint(dir)), 0o600)
}

// drop removes the databases.
func (d *userDatabase) drop(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	driver, source, quote := "pgx", d.of("postgres"), `"`
	if d.dsn != nil {
		driver, source, quote = "mysql", d.dsn.FormatDSN(), "`"
	}
	db, err := sql.Open(driver, source)
	if err != nil {
		return err
	}
	defer db.Close()
	for dir, name := range d.made {
		if _, err := db.ExecContext(ctx, "DROP DATABASE IF EXISTS "+quote+name+quote); err != nil {
			return fmt.Errorf("drop the database of a round: %w", err)
		}
		delete(d.made, dir)
	}
	return nil
}
