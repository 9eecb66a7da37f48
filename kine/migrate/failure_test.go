package migrate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/enginetest"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/kine/external"
	"github.com/karve-k8s/karve/kine/location"
	"github.com/karve-k8s/karve/server/storage"
)

// fails is a migration that must fail with these words, in one line.
func fails(t *testing.T, from, to End, words ...string) {
	t.Helper()
	r, err := Run(t.Context(), from, to, nil)
	wantError(t, r, err, words...)
}

func wantError(t *testing.T, r *Result, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("%+v, want an error with %q", r, words)
	}
	for _, word := range append(words, "--") {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q, want %q in it", err, word)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q, want one line", err)
	}
	for _, word := range strings.Fields(err.Error()) {
		if word = strings.TrimSuffix(word, ":"); strings.Contains(word, "://") && strings.Count(err.Error(), word) > 1 && !strings.Contains(err.Error(), "etcdctl") {
			t.Errorf("%q has %s twice", err, word)
		}
	}
}

func TestMigrationRefusals(t *testing.T) {
	source, _ := cluster(t)
	before := files(t, source.Dir)
	empty := func() End { return fileEnd(filepath.Join(t.TempDir(), "data")) }

	fails(t, source, source, "this is the source itself")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(source.Dir, link); err != nil {
		t.Fatal(err)
	}
	fails(t, source, fileEnd(link), "this is the source itself")
	fails(t, fileEnd("/nowhere"), empty(), "/nowhere/mvcc.db does not exist")
	none := t.TempDir()
	if err := os.WriteFile(filepath.Join(none, datastore.EngineFile), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	fails(t, fileEnd(none), empty(), "is not a database")
	old := t.TempDir()
	if err := os.WriteFile(filepath.Join(old, "state.db"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	fails(t, fileEnd(old), empty(), "karve datastore import "+filepath.Join(old, "state.db"))
	fails(t, source, fileEnd(old), "state.db", "move it away")
	full := t.TempDir()
	e, lock := enginetest.OpenLocked(t, full, datastore.Options{})
	fails(t, fileEnd(full), empty(), "in use", "stop the server first")
	fails(t, source, fileEnd(full), "in use", "stop the server first")
	enginetest.Put(t, e, "/other", "no cluster's")
	e.Close()
	lock.Close()
	fails(t, source, fileEnd(full), "already has data", "move the file away")
	fails(t, fileEnd(full), empty(), "there is nothing to migrate", nothingLeft)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fails(t, source, fileEnd(file), file)

	fails(t, source, etcdEnd("http://127.0.0.1:1"), "http://127.0.0.1:1", "connection refused")
	fails(t, etcdEnd("http://127.0.0.1:1"), empty(), "connection refused")
	used := karvesEtcd(t)
	fails(t, used, empty(), "there is nothing to migrate")
	put(t, used, "/registry/a", "v")
	fails(t, source, used, "it is not empty: there are 1 keys", "etcdctl --endpoints unix://", "del --prefix /registry/")
	shared := karvesEtcd(t)
	put(t, shared, "compact_rev_key", "v")
	put(t, shared, "/other", "v")
	fails(t, source, shared, "others use it: there are 1 keys outside of /registry/", "compacts the history", "name an etcd that nobody else uses")
	put(t, used, "/registry/masterleases/192.0.2.1", "v")
	fails(t, used, empty(), "a server uses it (/registry/masterleases/192.0.2.1)", "15 seconds")

	database := func(url string) End {
		t.Helper()
		d, err := external.Parse(url)
		if err != nil {
			t.Fatal(err)
		}
		return End{Option: "--database", Where: d.String(), Database: d}
	}
	for _, url := range []string{"postgres://karve:secret@127.0.0.1:1/x", "mysql://karve:secret@tcp(127.0.0.1:1)/x"} {
		for _, err := range []error{
			func() error { _, err := Run(t.Context(), source, database(url), nil); return err }(),
			func() error { _, err := Run(t.Context(), database(url), empty(), nil); return err }(),
		} {
			wantError(t, nil, err, "127.0.0.1:1", "connection refused")
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("%q has the password", err)
			}
		}
	}
	if after := files(t, source.Dir); len(after) != len(before) || after[datastore.EngineFile] != before[datastore.EngineFile] {
		t.Error("the source has been changed")
	}
}

func put(t *testing.T, e End, key, value string) {
	t.Helper()
	if _, err := client(t, e).Put(t.Context(), key, value); err != nil {
		t.Fatal(err)
	}
}

// Databases that are real are refused for the same reasons.
func TestMigrationRefusesDatabases(t *testing.T) {
	for _, kind := range []string{"postgres", "mysql"} {
		t.Run(kind, func(t *testing.T) {
			source, _ := cluster(t)
			db := kinds[kind](t)
			fails(t, db, fileEnd(filepath.Join(t.TempDir(), "data")), "no server has used this database")
			if _, err := db.Database.ReadTable(t.Context(), external.Options{}); err == nil || !strings.Contains(err.Error(), "no server has used") {
				t.Errorf("the database has been created: %v", err)
			}
			run(t, source, db)
			other := kinds[kind](t)
			run(t, source, other)
			fails(t, source, db, "is not empty", fmt.Sprint(clusterKeys, " keys"), "drop the table")
			fails(t, other, db, "is not empty", "may be the source itself", other.Where)
			fails(t, db, db, "this is the source itself")
			endpoint := os.Getenv("KARVE_TEST_" + strings.ToUpper(kind))
			spelled, err := external.Parse(strings.Replace(endpoint, "127.0.0.1", "localhost", 1) + db.Where[strings.LastIndex(db.Where, "/")+1:])
			if err != nil {
				t.Fatal(err)
			}
			fails(t, db, End{Option: "--database", Where: spelled.String(), Database: spelled}, "is not empty", "may be the source itself", db.Where)
			serve(t, db)
			fails(t, db, fileEnd(filepath.Join(t.TempDir(), "data")), "other programs have", "stop all servers")

			for _, wrong := range []string{
				strings.NewReplacer("p%40ss", "wrong", "p@ss", "wrong").Replace(endpoint),
				strings.Replace(endpoint, "karve:", "nobody:", 1),
			} {
				d, err := external.Parse(wrong + "x")
				if err != nil {
					t.Fatal(err)
				}
				end := End{Option: "--database", Where: d.String(), Database: d}
				for _, err := range []error{
					func() error { _, err := Run(t.Context(), source, end, nil); return err }(),
					func() error {
						_, err := Run(t.Context(), end, fileEnd(filepath.Join(t.TempDir(), "data")), nil)
						return err
					}(),
				} {
					wantError(t, nil, err, "--database "+d.String())
					if !errors.Is(err, external.ErrRefused) || strings.Contains(err.Error(), "w0rd") {
						t.Errorf("%v, want a refusal without the password", err)
					}
				}
			}
		})
	}
}

// With the files, the certificate of the database is verified.
func TestMigrationWithTLS(t *testing.T) {
	for _, kind := range []string{"postgres", "mysql"} {
		t.Run(kind, func(t *testing.T) {
			source, want := cluster(t)
			db := kinds[kind](t)
			db.CAFile = setting(t, "KARVE_TEST_DATABASE_CA")
			run(t, source, db)
			sameContents(t, contents(t, db), want)
			db.CAFile = filepath.Join(t.TempDir(), "other.crt")
			if err := os.WriteFile(db.CAFile, []byte(otherAuthority), 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := Run(t.Context(), db, fileEnd(filepath.Join(t.TempDir(), "data")), nil)
			wantError(t, r, err, "--database "+db.Where, "certificate")
			if !errors.Is(err, external.ErrRefused) {
				t.Errorf("%v, want a refusal", err)
			}
		})
	}
}

// killed is the variable with the source and the target of a migration that kills its process.
const killed = "KARVE_TEST_MIGRATION_KILLED"

func TestMain(m *testing.M) {
	logrus.SetOutput(io.Discard) // kine logs
	if ends := strings.Split(os.Getenv(killed), " "); len(ends) == 3 {
		migrateAndDie(ends[0], ends[1], ends[2])
	}
	os.Exit(m.Run())
}

func migrateAndDie(from, to, doing string) {
	target := fileEnd(strings.TrimPrefix(to, "sqlite://"))
	if l, err := location.ParseAs("--to", to); err == nil && l.External != nil {
		target = End{Option: "--to", Where: l.String(), Database: l.External}
	} else if !strings.HasPrefix(to, "sqlite://") {
		target = etcdEnd(to)
	}
	_, err := Run(context.Background(), fileEnd(from), target, func(p Progress) {
		if p.Doing == doing && p.Done >= p.Total/2 {
			self, _ := os.FindProcess(os.Getpid())
			self.Kill()
			select {}
		}
	})
	fmt.Println("was not killed:", err)
	os.Exit(1)
}

// A migration that is killed leaves nothing, or says what it has left.
func TestMigrationKilled(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		source, want := cluster(t)
		for _, doing := range []string{copying, verifying} {
			to := kinds[kind](t)
			name := to.Where
			if to.Database != nil {
				name = os.Getenv("KARVE_TEST_"+strings.ToUpper(kind)) + to.Where[strings.LastIndex(to.Where, "/")+1:]
			}
			child := exec.Command(os.Args[0])
			child.Env = append(os.Environ(), killed+"="+source.Dir+" "+name+" "+doing)
			if out, err := child.CombinedOutput(); err == nil || len(out) > 0 {
				t.Fatalf("%v: %s, want that it is killed", err, out)
			}
			if to.Etcd != nil {
				fails(t, source, to, "a migration (from sqlite://", "has not finished", "del --prefix /registry/")
				fails(t, to, fileEnd(filepath.Join(t.TempDir(), "data")), "has not finished")
				refusesToServe(t, to)
				if _, err := client(t, to).Delete(t.Context(), Prefix, clientv3.WithPrefix()); err != nil {
					t.Fatal(err)
				}
			}
			run(t, source, to)
			sameContents(t, contents(t, to), want)
		}
	})
}

// refusesToServe tries to start a server on half of a cluster.
func refusesToServe(t *testing.T, e End) {
	t.Helper()
	log := logrus.New()
	log.SetOutput(t.Output())
	part := storage.NewEtcd(storage.EtcdConfig{Endpoints: e.Etcd, Prefix: "/registry", Option: "datastore-endpoint", Log: log, Status: func(string) {}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := part.Run(ctx, func() {
		t.Error("a server has started")
		cancel()
	})
	if err == nil || !strings.Contains(err.Error(), "has not finished") || !errors.Is(err, external.ErrRefused) {
		t.Errorf("%v, want that the migration has not finished", err)
	}
}

// A server that runs has its connections, or writes; both are seen.
func TestMigrationOfASourceThatChanges(t *testing.T) {
	first, _ := cluster(t)
	source := karvesEtcd(t)
	run(t, first, source)
	c := client(t, source)
	write := func(key string) func(Progress) {
		done := false
		return func(p Progress) {
			if !done {
				done = true
				if _, err := c.Put(t.Context(), key, "later"); err != nil {
					t.Error(err)
				}
			}
		}
	}
	to := fileEnd(filepath.Join(t.TempDir(), "data"))
	r, err := Run(t.Context(), source, to, write("/registry/pods/default/7"))
	wantError(t, r, err, "a server has written /registry/pods/default/7 meanwhile", "stop all servers", nothingLeft)
	if _, err := Run(t.Context(), source, to, write("/elsewhere")); err != nil {
		t.Errorf("a key of somebody else has been written: %v", err)
	}
	if r := run(t, source, fileEnd(filepath.Join(t.TempDir(), "data"))); r.LeftOut != 1 {
		t.Errorf("%d keys left out, want that of somebody else", r.LeftOut)
	}
	if got := contents(t, to)["/registry/pods/default/7"]; got != "0 later" {
		t.Errorf("%q, want what was there at the begin", got)
	}
}

// The revision of an etcd is raised by writes, so it cannot be raised by a billion.
func TestMigrationToAnEtcdThatIsFarBehind(t *testing.T) {
	dir := t.TempDir()
	b, err := sqlitefile.NewBuilder(filepath.Join(dir, datastore.EngineFile))
	if err != nil {
		t.Fatal(err)
	}
	const revision = 1_000_000_000
	if err := b.Add(&sqlitefile.Row{ID: sqlitefile.RowID(revision, 0), Key: "/registry/a", Create: revision, Version: 1}, []byte("v")); err != nil {
		t.Fatal(err)
	}
	if err := b.Finish(sqlitefile.Metas{"revision": revision}); err != nil {
		t.Fatal(err)
	}
	lock, err := directory.Acquire(dir) // makes its file
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()
	to := karvesEtcd(t)
	fails(t, fileEnd(dir), to, "its revision is 1, ", "above 1000000000", "etcdutl snapshot restore --bump-revision 1000000001 --mark-compacted")
	if got, err := client(t, to).Get(t.Context(), Prefix, clientv3.WithPrefix()); err != nil || len(got.Kvs) > 0 {
		t.Errorf("%v, %v, want nothing", got, err)
	}
}

// damaged is a target that does not return what was written.
type damaged struct {
	target
	change func(entry) []entry
}

func (d damaged) each(ctx context.Context, do func(entry) error) error {
	return d.target.each(ctx, func(e entry) error {
		for _, e := range d.change(e) {
			if err := do(e); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestVerificationSeesEveryDifference(t *testing.T) {
	source, _ := cluster(t)
	const key = "/registry/pods/default/300"
	at := func(change func(entry) []entry) func(entry) []entry {
		return func(e entry) []entry {
			if e.key == key {
				return change(e)
			}
			return []entry{e}
		}
	}
	for want, change := range map[string]func(entry) []entry{
		"1 keys are missing, such as " + key: at(func(entry) []entry { return nil }),
		key + " has another value": at(func(e entry) []entry {
			e.value = append(bytes.Clone(e.value), 0)
			return []entry{e}
		}),
		key + " is there, once more": at(func(e entry) []entry { return []entry{e, e} }),
		"new is there, once more":    at(func(e entry) []entry { return []entry{{key: "new"}, e} }),
		"short has another value": func(e entry) []entry {
			if e.key == "/registry/events/short" {
				e.ttl = 0
			}
			return []entry{e}
		},
		"": func(e entry) []entry { return []entry{e} },
	} {
		src, err := source.read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		to := fileEnd(filepath.Join(t.TempDir(), "data"))
		dst, err := to.fill(t.Context(), source, src, nil)
		if err != nil {
			t.Fatal(err)
		}
		m := &migration{from: source, to: to, src: src, dst: damaged{dst, change}, progress: func(Progress) {}, sums: sums{}, out: &Result{}}
		err = m.run(t.Context())
		switch {
		case want == "" && err != nil:
			t.Error(err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%v, want %q", err, want)
		}
		src.close()
		dst.close()
		if there := enginetest.Glob(t, to.Dir, datastore.EngineFile+"*"); want != "" && len(there) > 0 {
			t.Errorf("left behind: %v", there)
		}
	}
}

// otherAuthority is a certificate whose key nobody has.
const otherAuthority = `-----BEGIN CERTIFICATE-----
MIIBdjCCAR2gAwIBAgIUamSx1p9U59v3OsQtqOEcU1mov+4wCgYIKoZIzj0EAwIw
EDEOMAwGA1UEAwwFb3RoZXIwIBcNMjYxMTIzMDUzODQxWhgPMjEyNjEwMzAwNTM4
NDFaMBAxDjAMBgNVBAMMBW90aGVyMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE
JEQlbeVvg88wMFc358tF2W5TKegIc4U9Y3U2D6Ck1eE1opEEtssImdOQG11TAXHM
KL4UGde9Ozbd2cF0t33OgaNTMFEwHQYDVR0OBBYEFM6qLA2d37NBiOIoQ5tToYY7
/XwTMB8GA1UdIwQYMBaAFM6qLA2d37NBiOIoQ5tToYY7/XwTMA8GA1UdEwEB/wQF
MAMBAf8wCgYIKoZIzj0EAwIDRwAwRAIgYqv9I41qiv3eWN1e2wSYDSibt+B0DI7s
HUL7EFJkWmICIHCVh98OiegxzsIFcQW9N+p+4+ZpOyspPTcROadS41sc
-----END CERTIFICATE-----
`
