package migrate

import (
	"database/sql"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/karve-k8s/karve/kine/external"
)

// relay forwards connections to an etcd, until lose makes it withhold one answer.
type relay struct {
	lose atomic.Pointer[func() bool] // tells whether the request has had its effect
}

// relayed is an etcd behind a relay.
func relayed(t *testing.T, to End) (End, *relay) {
	t.Helper()
	network, address, _ := strings.Cut(to.Etcd[0], "://")
	if network != "unix" {
		network = "tcp"
	}
	near, r := newRelay(t, network, address)
	return etcdEnd("http://" + near), r
}

// newRelay is a relay to an address, and its own.
func newRelay(t *testing.T, network, address string) (string, *relay) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	r := &relay{}
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial(network, address)
			if err != nil {
				near.Close()
				continue
			}
			go func() {
				io.Copy(far, near)
				far.Close()
			}()
			go r.answers(near, far)
		}
	}()
	return l.Addr().String(), r
}

// answers ends the connection once an answer has been lost.
func (r *relay) answers(near, far net.Conn) {
	defer near.Close()
	defer far.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := far.Read(buffer)
		if err != nil {
			return
		}
		if lose := r.lose.Load(); lose != nil && (*lose)() {
			r.lose.Store(nil)
			return
		}
		if _, err := near.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// An etcd may have committed a transaction whose answer is lost. So the key that keeps servers away stays.
func TestMigrationThatLosesAnAnswer(t *testing.T) {
	source, want := cluster(t)
	etcd := karvesEtcd(t)
	c := client(t, etcd)
	to, r := relayed(t, etcd)
	count := func() int64 {
		got, err := c.Get(t.Context(), Prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Error(err)
			return 0
		}
		return got.Count
	}
	written := func() bool { return count() > 1 }
	_, err := Run(t.Context(), source, to, func(p Progress) {
		if p.Doing == copying && p.Done == 1 {
			r.lose.Store(&written)
		}
	})
	wantError(t, nil, err, "0 or more of the keys. No server starts with it while it has /registry/karve/migrating", "del --prefix /registry/")
	if n := count(); n < 2 {
		t.Fatalf("%d keys, want that the transaction has been committed", n)
	}
	refusesToServe(t, etcd)
	if _, err := c.Delete(t.Context(), Prefix, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	run(t, source, to)
	sameContents(t, contents(t, etcd), want)
}

// Nothing is written to an etcd that servers may start with.
func TestMigrationWhoseMarkerIsDeleted(t *testing.T) {
	source, _ := cluster(t)
	to := karvesEtcd(t)
	c := client(t, to)
	_, err := Run(t.Context(), source, to, func(p Progress) {
		if p.Doing == copying && p.Done == 1 {
			if _, err := c.Delete(t.Context(), Prefix, clientv3.WithPrefix()); err != nil {
				t.Error(err)
			}
		}
	})
	wantError(t, nil, err, "somebody has deleted /registry/karve/migrating meanwhile")
	if got, err := c.Get(t.Context(), Prefix, clientv3.WithPrefix()); err != nil || got.Count > 0 {
		t.Errorf("%v, %v, want that nothing has been written", got, err)
	}
}

// The remedy for an etcd that is not empty must not delete the cluster.
func TestMigrationToTheSourceByAnotherName(t *testing.T) {
	first, want := cluster(t)
	source := karvesEtcd(t)
	run(t, first, source)
	again, _ := relayed(t, source)
	_, err := Run(t.Context(), source, again, nil)
	wantError(t, nil, err, "it may be the source itself", source.Where)
	if err != nil && strings.Contains(err.Error(), "del --prefix") {
		t.Errorf("%v, want no command that deletes the source", err)
	}
	sameContents(t, contents(t, source), want)
}

// The last step may have succeeded although its answer is lost. Nobody may then be told that the target is empty.
func TestMigrationWithAnUnknownOutcome(t *testing.T) {
	source, want := cluster(t)
	fill := func(t *testing.T, to End, r *relay, done func() bool, see string) {
		t.Helper()
		_, err := Run(t.Context(), source, to, func(p Progress) {
			if p.Doing == verifying && p.Done == p.Total {
				r.lose.Store(&done)
			}
		})
		wantError(t, nil, err, "it is unknown whether the migration is complete", see)
		if err != nil && (strings.Contains(err.Error(), nothingLeft) || strings.Contains(err.Error(), "del --prefix")) {
			t.Errorf("%v, want nothing about an empty target", err)
		}
	}
	t.Run("etcd", func(t *testing.T) {
		etcd := karvesEtcd(t)
		to, r := relayed(t, etcd)
		c := client(t, etcd)
		fill(t, to, r, func() bool {
			got, err := c.Get(t.Context(), Prefix+"karve/migrating")
			return err == nil && got.Count == 0
		}, "etcdctl --endpoints "+to.Where+" get /registry/karve/migrating")
		sameContents(t, contents(t, etcd), want)
	})
	for _, kind := range []string{"postgres", "mysql"} {
		t.Run(kind, func(t *testing.T) {
			db := kinds[kind](t)
			address := regexp.MustCompile(`127\.0\.0\.1:\d+`)
			near, r := newRelay(t, "tcp", address.FindString(db.Where))
			d, err := external.Parse(address.ReplaceAllString(databaseURL(kind, db), near))
			if err != nil {
				t.Fatal(err)
			}
			var look *sql.DB
			fill(t, End{Option: "--database", Where: d.String(), Database: d}, r, func() bool {
				if look == nil { // not before: any other connection is a server's
					look = direct(t, kind, databaseURL(kind, db))
				}
				var there bool
				return look.QueryRow("SELECT COUNT(*) > 0 FROM kine").Scan(&there) == nil && there
			}, "migrate again")
			if look != nil {
				look.Close()
			}
			fails(t, source, db, "is not empty")
			sameContents(t, contents(t, db), want)
		})
	}
}

// databaseURL is the URL of a database, with its password.
func databaseURL(kind string, db End) string {
	return os.Getenv("KARVE_TEST_"+strings.ToUpper(kind)) + db.Where[strings.LastIndex(db.Where, "/")+1:]
}

// direct is a connection to a database, as one of its users has it.
func direct(t *testing.T, kind, url string) *sql.DB {
	t.Helper()
	driver := "pgx"
	if kind == "mysql" {
		driver, url = kind, strings.TrimPrefix(url, "mysql://")
	}
	db, err := sql.Open(driver, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func execute(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := db.Exec(statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// In a replica, and as a user without privileges, a running server cannot be seen.
func TestMigrationOfASourceThatHidesServers(t *testing.T) {
	to := fileEnd(filepath.Join(t.TempDir(), "data"))
	t.Run("postgres", func(t *testing.T) {
		source, _ := cluster(t)
		db := kinds["postgres"](t)
		run(t, source, db)
		name := db.Where[strings.LastIndex(db.Where, "/")+1:]
		look := direct(t, "postgres", databaseURL("postgres", db))
		// A standby, as far as the statement can tell.
		execute(t, look, `CREATE FUNCTION public.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'`,
			"ALTER DATABASE "+name+" SET search_path = public, pg_catalog")
		look.Close()
		fails(t, db, to, "as a replica is", "Name the primary")
	})
	t.Run("mysql", func(t *testing.T) {
		source, _ := cluster(t)
		db := kinds["mysql"](t)
		run(t, source, db)
		look := direct(t, "mysql", setting(t, "KARVE_TEST_MYSQL"))
		d, err := external.Parse(strings.Replace(databaseURL("mysql", db), "karve:", "blind:", 1))
		if err != nil {
			t.Fatal(err)
		}
		fails(t, End{Option: "--database", Where: d.String(), Database: d}, to, "GRANT PROCESS")
		execute(t, look, "SET GLOBAL read_only = 1")
		defer execute(t, look, "SET GLOBAL read_only = 0")
		fails(t, db, to, "as a replica is", "Name the primary")
	})
}

// A running server keeps the keys that it has written to an empty table.
func TestMigrationToADatabaseInUse(t *testing.T) {
	for _, kind := range []string{"postgres", "mysql"} {
		t.Run(kind, func(t *testing.T) {
			source, _ := cluster(t)
			db := kinds[kind](t)
			serve(t, db)
			fails(t, source, db, "other programs have")
			var rows int
			if err := direct(t, kind, databaseURL(kind, db)).QueryRow("SELECT COUNT(*) FROM kine").Scan(&rows); err != nil || rows == 0 {
				t.Errorf("%d rows, %v, want those of the server", rows, err)
			}
		})
	}
}

// What MySQL refuses is named.
func TestMigrationWithinTheLimitsOfMySQL(t *testing.T) {
	look := direct(t, "mysql", setting(t, "KARVE_TEST_MYSQL"))
	var packet int
	if err := look.QueryRow("SELECT @@global.max_allowed_packet").Scan(&packet); err != nil {
		t.Fatal(err)
	}
	defer execute(t, look, fmt.Sprint("SET GLOBAL max_allowed_packet = ", packet))
	execute(t, look, "SET GLOBAL max_allowed_packet = 1048576")
	source := karvesEtcd(t)
	put(t, source, "/registry/heavy", strings.Repeat("\x00", 1_200_000))
	fails(t, source, kinds["mysql"](t), "raise max_allowed_packet", nothingLeft)
	if _, err := client(t, source).Delete(t.Context(), "/registry/heavy"); err != nil {
		t.Fatal(err)
	}
	put(t, source, "/registry/case", "v")
	put(t, source, "/registry/CASE", "another")
	to := kinds["mysql"](t)
	run(t, source, to)
	sameContents(t, contents(t, to), contents(t, source))
}
