package migrate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/enginetest"
	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/kine/external"
	"github.com/karve-k8s/karve/kine/inprocess"
)

// kinds make empty datastores. Databases and a real etcd are those that scripts/external-databases has
// started.
var kinds = map[string]func(t testing.TB) End{
	"file":       func(t testing.TB) End { return fileEnd(filepath.Join(t.TempDir(), "data")) },
	"Karve etcd": karvesEtcd,
	"postgres":   func(t testing.TB) End { return databaseEnd(t, "KARVE_TEST_POSTGRES") },
	"mysql":      func(t testing.TB) End { return databaseEnd(t, "KARVE_TEST_MYSQL") },
	"etcd":       realEtcd,
}

func fileEnd(dir string) End { return End{Option: "--file", Where: "sqlite://" + dir, Dir: dir} }

func etcdEnd(endpoint string) End {
	return End{Option: "--etcd", Where: endpoint, Etcd: []string{endpoint}, FileOptions: "files"}
}

func karvesEtcd(t testing.TB) End {
	t.Helper()
	dir, err := os.MkdirTemp("", "migrate") // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	e, err := datastore.OpenEngine(nil, datastore.Options{Durability: datastore.Memory})
	if err != nil {
		t.Fatal(err)
	}
	shim, err := kine.Serve(t.Context(), e, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		shim.Close()
		e.Close()
		os.RemoveAll(dir)
	})
	return etcdEnd(shim.Endpoint())
}

func setting(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Skipf("%s is not set: scripts/external-databases starts a database and sets it", name)
	}
	return value
}

func databaseEnd(t testing.TB, name string) End {
	t.Helper()
	d, err := external.Parse(setting(t, name) + fmt.Sprintf("migrate%d", time.Now().UnixNano()))
	if err != nil {
		t.Fatal(err)
	}
	return End{Option: "--database", Where: d.String(), Database: d}
}

// realEtcd is the one etcd, which this empties.
func realEtcd(t testing.TB) End {
	t.Helper()
	e := etcdEnd(setting(t, "KARVE_TEST_ETCD"))
	if _, err := client(t, e).Delete(t.Context(), "\x00", clientv3.WithFromKey()); err != nil {
		t.Fatal(err)
	}
	return e
}

func client(t testing.TB, e End) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: e.Etcd, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// eachKind runs a test with each kind that is there.
func eachKind(t *testing.T, test func(t *testing.T, kind string)) {
	for _, kind := range []string{"file", "Karve etcd", "postgres", "mysql", "etcd"} {
		t.Run(kind, func(t *testing.T) { test(t, kind) })
	}
}

const (
	// Of the cluster that is migrated.
	clusterKeys = 2304
	withTTL     = 1101
)

// cluster is a built-in datastore with all that a migration has to keep or to leave out, and what is to be kept.
// Its server has been killed.
func cluster(t *testing.T) (_ End, want map[string]string) {
	t.Helper()
	made.once.Do(func() { made.files, made.want = makeCluster(t) })
	dir := t.TempDir()
	for name, text := range made.files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return fileEnd(dir), made.want
}

// made is the cluster that all tests copy.
var made struct {
	once        sync.Once
	files, want map[string]string
}

func makeCluster(t *testing.T) (content, want map[string]string) {
	t.Helper()
	dir := t.TempDir()
	e, lock := enginetest.OpenLocked(t, dir, datastore.Options{})
	put := func(r datastore.PutRequest) {
		t.Helper()
		if _, err := e.Put(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	lease, err := e.Grant(t.Context(), 0, 3600)
	if err != nil {
		t.Fatal(err)
	}
	short, err := e.Grant(t.Context(), 0, 600)
	if err != nil {
		t.Fatal(err)
	}
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for i := range 1201 {
		put(datastore.PutRequest{Key: fmt.Sprintf("/registry/pods/default/%d", i), Value: bytes.Repeat([]byte{byte(i)}, i)})
	}
	for i := range 1100 { // more than a lease gets
		put(datastore.PutRequest{Key: fmt.Sprintf("/registry/events/default/%d", i), Value: all, Lease: lease.ID})
	}
	put(datastore.PutRequest{Key: "/registry/events/short", Value: all, Lease: short.ID})
	put(datastore.PutRequest{Key: "/registry/karve/kubernetes-version", Value: []byte("v1.2.3")})
	put(datastore.PutRequest{Key: "/registry/large", Value: bytes.Repeat(all, 5000)})
	put(datastore.PutRequest{Key: "/registry/pods/default/1", Value: []byte("changed")})
	for key, value := range map[string]string{"/registry/gone": "", "/registry/back": "once"} {
		put(datastore.PutRequest{Key: key, Value: []byte(value)})
		if _, err := e.Delete(t.Context(), datastore.DeleteRequest{Key: key}); err != nil {
			t.Fatal(err)
		}
	}
	put(datastore.PutRequest{Key: "/registry/pods/default/2", Value: nil})
	put(datastore.PutRequest{Key: "/registry/pods/default/3", Value: []byte("k8s:enc:aescbc:v1:key:\x00")})
	// These are left out.
	put(datastore.PutRequest{Key: "compact_rev_key", Value: []byte("7")})
	put(datastore.PutRequest{Key: "/registry/masterleases/192.0.2.1", Value: []byte("a server"), Lease: short.ID})
	put(datastore.PutRequest{Key: "/other", Value: []byte("of another program")})
	want = map[string]string{}
	kept, err := e.Range(t.Context(), datastore.RangeRequest{Key: Prefix, End: prefixEnd})
	if err != nil {
		t.Fatal(err)
	}
	ttls := map[int64]int64{0: 0, lease.ID: 3600, short.ID: 600}
	for _, kv := range kept.KVs {
		want[kv.Key] = fmt.Sprintf("%d %s", ttls[kv.Lease], kv.Value)
	}
	delete(want, "/registry/masterleases/192.0.2.1")
	enginetest.Crash(t, e)
	lock.Close()
	return files(t, dir), want
}

// contents are the keys of a datastore that belong to a cluster, with their values and whether they expire.
func contents(t *testing.T, e End) map[string]string {
	t.Helper()
	src, err := e.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer src.close()
	all := map[string]string{}
	err = src.each(t.Context(), func(e entry) error {
		if cluster, _ := migrates(e.key); cluster {
			all[e.key] = fmt.Sprintf("%d %s", e.ttl, e.value)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func sameContents(t *testing.T, got, want map[string]string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d keys, want %d", len(got), len(want))
	}
	for key, value := range want {
		if there, ok := got[key]; !ok || there != value {
			t.Fatalf("%s: %.60q (%v), want %.60q", key, there, ok, value)
		}
	}
}

func run(t testing.TB, from, to End) *Result {
	t.Helper()
	r, err := Run(t.Context(), from, to, nil)
	if err != nil {
		t.Fatalf("from %s to %s: %v", from.Where, to.Where, err)
	}
	return r
}

// Each datastore gets a cluster, and gives it to each other.
func TestMigrationInEveryDirection(t *testing.T) {
	eachKind(t, func(t *testing.T, first string) {
		eachKind(t, func(t *testing.T, second string) {
			if first == "etcd" && second == "etcd" {
				t.Skip("there is one etcd, and it is no target of itself")
			}
			origin, want := cluster(t)
			before := files(t, origin.Dir)
			a, b := kinds[first](t), kinds[second](t)
			one := run(t, origin, a)
			if one.Keys != clusterKeys || one.WithTTL != withTTL || one.Encrypted != 1 || one.LeftOut != 1 || int64(len(want)) != one.Keys || one.Revision <= one.SourceRevision {
				t.Errorf("%+v, want %d keys, %d with a TTL, 1 encrypted, 1 left out, and a higher revision", one, clusterKeys, withTTL)
			}
			sameContents(t, contents(t, a), want)
			two := run(t, a, b)
			if two.Keys != one.Keys || two.Bytes != one.Bytes || two.WithTTL != withTTL || two.LeftOut != 0 || two.SourceRevision < one.Revision || two.Revision <= two.SourceRevision {
				t.Errorf("%+v after %+v, want the same content at a higher revision", two, one)
			}
			sameContents(t, contents(t, b), want)
			sameContents(t, contents(t, a), want)
			if after := files(t, origin.Dir); !maps.Equal(after, before) {
				t.Errorf("the source has been changed: %v, %v before", slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before)))
			}
			used(t, b, two)
		})
	})
}

// files are the contents of the files in a directory, without the lock.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range enginetest.Glob(t, dir, "*") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(name) != "lock" {
			all[filepath.Base(name)] = string(text)
		}
	}
	return all
}

// used uses a datastore that has been filled as a server does.
func used(t *testing.T, e End, r *Result) {
	t.Helper()
	const key = "/registry/karve/kubernetes-version"
	k, watch := serve(t, e)
	got, err := k.Get(t.Context(), key, kubernetes.GetOptions{})
	if err != nil || got.KV == nil || got.KV.ModRevision <= r.SourceRevision || got.KV.CreateRevision != got.KV.ModRevision || got.KV.Version > 1 {
		t.Fatalf("get: %+v, %v, want a revision above %d", got, err, r.SourceRevision)
	}
	if _, err := k.List(t.Context(), Prefix, kubernetes.ListOptions{Revision: r.SourceRevision}); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("list at the source's revision: %v, want ErrCompacted", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Limit)
	defer cancel()
	answer := eventually.Receive(t, "an answer to a watch", watch.Watch(ctx, Prefix, clientv3.WithPrefix(), clientv3.WithRev(r.SourceRevision)))
	if answer.CompactRevision <= r.SourceRevision {
		t.Errorf("watch from the source's revision: %+v, want that it is compacted", answer)
	}
	updated, err := k.OptimisticPut(t.Context(), key, []byte("v1.2.4"), got.KV.ModRevision, kubernetes.PutOptions{})
	if err != nil || !updated.Succeeded || updated.Revision <= r.Revision {
		t.Errorf("update: %+v, %v, want a revision above %d", updated, err, r.Revision)
	}
	created, err := k.OptimisticPut(t.Context(), "/registry/new", []byte("v"), 0, kubernetes.PutOptions{})
	if err != nil || !created.Succeeded || created.Revision != updated.Revision+1 {
		t.Errorf("create: %+v, %v, want revision %d", created, err, updated.Revision+1)
	}
	if again, err := k.OptimisticPut(t.Context(), "/registry/large", []byte("v"), 0, kubernetes.PutOptions{}); err != nil || again.Succeeded {
		t.Errorf("create of a key that is there: %+v, %v", again, err)
	}
}

// serve opens a datastore as a server does, and returns a client.
func serve(t *testing.T, e End) (kubernetes.Interface, *clientv3.Client) {
	t.Helper()
	if e.Etcd != nil {
		c := client(t, e)
		return kubernetes.Client{Client: c}, c
	}
	var url string
	if e.Database != nil {
		b, err := e.Database.Open(t.Context(), external.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		served, err := external.Serve(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(served.Close)
		url = served.URL()
	} else {
		engine := enginetest.Open(t, e.Dir, datastore.Options{})
		shim, err := kine.Serve(t.Context(), engine, "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { shim.Close() })
		url = shim.LocalEndpoint()
	}
	c, err := inprocess.NewClient(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.Kubernetes, c.Client
}
