package membership

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/k3s-io/kine/pkg/drivers/memory"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/kine/etcdapi"
	"github.com/karve-k8s/karve/kine/external"
	"github.com/karve-k8s/karve/kine/inprocess"
)

const prefix = "/registry/"

// emptyStore returns a client of an empty datastore: the engine's, or that of a database, which
// knows fewer transactions.
func emptyStore(t *testing.T, database bool) clientv3.KV {
	t.Helper()
	engine, err := datastore.OpenEngine(nil, datastore.Options{Durability: datastore.Memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close() })
	var served *inprocess.Endpoint
	if database {
		_, backend, _ := memory.New(t.Context(), nil, nil) // it has no errors
		served, err = external.Serve(t.Context(), backend)
	} else {
		served, err = inprocess.Serve(t.Context(), inprocess.Engine(engine), etcdapi.New(engine, kine.EtcdVersion), kine.ProgressInterval)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(served.Close)
	client, err := inprocess.NewClient(served.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client.KV
}

func emptyCluster(t *testing.T) Cluster { return clusterIn(emptyStore(t, false), prefix) }

// clusterIn returns a cluster whose API servers accept every encryption configuration without the word
// invalid. Its other words are the keys.
func clusterIn(kv clientv3.KV, prefix string) Cluster {
	return Cluster{KV: kv, Prefix: prefix, Ways: func(content []byte) ([]Stored, error) {
		if bytes.Contains(content, []byte("invalid")) {
			return nil, errors.New("is no good")
		}
		ways := []Stored{{Provider: Identity}}
		for _, key := range strings.Fields(string(content)) {
			ways = append(ways, Stored{"secretbox", key})
		}
		return ways, nil
	}}
}

func newToken(t *testing.T) *Token { return &Token{strings.TrimSpace(NewToken()), "/the/token"} }

// newServer returns a server with an empty directory.
func newServer(t *testing.T, token *Token) Server {
	return Server{Certs: certs.Config{Dir: filepath.Join(t.TempDir(), "certs"), NoSync: true}, Token: token}
}

// started returns a server that has been a cluster of its own.
func started(t *testing.T, token *Token) Server {
	t.Helper()
	s := newServer(t, token)
	s.issue(t)
	return s
}

func (s Server) issue(t *testing.T) {
	t.Helper()
	if _, _, err := certs.Ensure(s.Certs); err != nil {
		t.Fatal(err)
	}
}

func (s Server) keys(t *testing.T) map[certs.Name]string {
	t.Helper()
	shared, err := certs.ReadShared(s.Certs.Dir)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := shared.Fingerprints()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func (c Cluster) join(t *testing.T, s Server) Outcome {
	t.Helper()
	if err := c.Check(t.Context(), s); err != nil {
		t.Errorf("a check says %v", err)
	}
	done, err := c.Join(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// refused checks that s cannot join, and that neither its directory nor the record changes.
func (c Cluster) refused(t *testing.T, s Server, want ...string) error {
	t.Helper()
	files, record := content(t, s.Certs.Dir), c.stored(t)
	_, err := c.Join(t.Context(), s)
	if err == nil {
		t.Fatalf("joined, want an error with %q", want)
	}
	for _, text := range want {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("got %q, want %q in it", err, text)
		}
	}
	if s.Token != nil && strings.Contains(err.Error(), s.Token.secret) || strings.Contains(err.Error(), "\n") {
		t.Errorf("the error has the token in it, or several lines: %v", err)
	}
	if !maps.Equal(content(t, s.Certs.Dir), files) {
		t.Error("files have changed")
	}
	if c.stored(t) != record {
		t.Error("the record has changed")
	}
	if checked := c.Check(t.Context(), s); errors.Is(err, ErrOther) && (checked == nil || checked.Error() != err.Error()) {
		t.Errorf("a check says %v, and a start %v", checked, err)
	}
	return err
}

func (c Cluster) stored(t *testing.T) string {
	t.Helper()
	got, err := c.KV.Get(t.Context(), c.key())
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Kvs) == 0 {
		return ""
	}
	return string(got.Kvs[0].Value)
}

func (c Cluster) put(t *testing.T, key, value string) {
	t.Helper()
	if _, err := c.KV.Put(t.Context(), key, value); err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(text)
	}
	return all
}

// The first server stores its keys, the second has the same, and both can come back.
func TestServersJoin(t *testing.T) {
	for name, database := range map[string]bool{"engine": false, "database": true} {
		t.Run(name, func(t *testing.T) {
			c, token := clusterIn(emptyStore(t, database), prefix), newToken(t)
			one, two := newServer(t, token), newServer(t, token)
			if done := c.join(t, one); !done.Stored || done.Fetched {
				t.Errorf("the first server: got %+v, want it to store", done)
			}
			one.issue(t)
			if done := c.join(t, two); done.Stored || !done.Fetched {
				t.Errorf("the second server: got %+v, want it to fetch", done)
			}
			two.issue(t)
			if !maps.Equal(one.keys(t), two.keys(t)) || len(one.keys(t)) != len(certs.SharedNames()) {
				t.Errorf("got keys %v and %v", one.keys(t), two.keys(t))
			}
			for _, s := range []Server{one, two} {
				before := content(t, s.Certs.Dir)
				if done := c.join(t, s); done != (Outcome{}) {
					t.Errorf("a server that comes back: got %+v, want nothing", done)
				}
				if s.Token = nil; c.join(t, s) != (Outcome{}) || !maps.Equal(content(t, s.Certs.Dir), before) {
					t.Error("a server that comes back without its token has changed something")
				}
			}
			if record := c.stored(t); strings.Contains(record, "PRIVATE KEY") || strings.Contains(record, token.secret) {
				t.Error("the record shows a secret")
			}
		})
	}
}

// Each prefix is a cluster.
func TestPrefixesAreClusters(t *testing.T) {
	kv, token := emptyStore(t, false), newToken(t)
	one, two := newServer(t, token), newServer(t, token)
	clusterIn(kv, "/one/").join(t, one)
	if done := clusterIn(kv, "/two/").join(t, two); !done.Stored {
		t.Errorf("got %+v, want the second prefix to be a cluster of its own", done)
	}
	clusterIn(kv, "/two/").refused(t, one, "are not the cluster's")
}

func TestServersThatStartAtOnceAgree(t *testing.T) {
	for name, database := range map[string]bool{"engine": false, "database": true} {
		t.Run(name, func(t *testing.T) {
			c, token := clusterIn(emptyStore(t, database), prefix), newToken(t)
			all := make([]Server, 6)
			done := make([]Outcome, len(all))
			errs := make([]error, len(all))
			var joining sync.WaitGroup
			for i := range all {
				all[i] = newServer(t, token)
				joining.Go(func() { done[i], errs[i] = c.Join(t.Context(), all[i]) })
			}
			joining.Wait()
			stored := 0
			for i, s := range all {
				if errs[i] != nil {
					t.Fatal(errs[i])
				}
				if done[i].Stored {
					stored++
				}
				if !maps.Equal(s.keys(t), all[0].keys(t)) {
					t.Errorf("server %d has other keys", i)
				}
			}
			if stored != 1 {
				t.Errorf("%d servers have stored their keys, want 1", stored)
			}
		})
	}
}

// kv calls the functions at a step of a request.
type kv struct {
	clientv3.KV
	beforeCommit func()
	afterCommit  func() error
	beforeList   func()
}

func (k *kv) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if do := k.beforeList; do != nil && len(opts) > 0 {
		k.beforeList = nil
		do()
	}
	return k.KV.Get(ctx, key, opts...)
}

func (k *kv) Txn(ctx context.Context) clientv3.Txn { return txn{k.KV.Txn(ctx), k} }

type txn struct {
	clientv3.Txn
	kv *kv
}

func (t txn) If(all ...clientv3.Cmp) clientv3.Txn  { return txn{t.Txn.If(all...), t.kv} }
func (t txn) Then(all ...clientv3.Op) clientv3.Txn { return txn{t.Txn.Then(all...), t.kv} }
func (t txn) Else(all ...clientv3.Op) clientv3.Txn { return txn{t.Txn.Else(all...), t.kv} }
func (t txn) Commit() (*clientv3.TxnResponse, error) {
	if do := t.kv.beforeCommit; do != nil {
		t.kv.beforeCommit = nil
		do()
	}
	r, err := t.Txn.Commit()
	if do := t.kv.afterCommit; do != nil && err == nil {
		err = do()
	}
	return r, err
}

// Another server may be faster at any moment.
func TestTheSlowerServerTakesTheKeys(t *testing.T) {
	for name, step := range map[string]func(*kv, func()){
		"before it writes":            func(k *kv, do func()) { k.beforeCommit = do },
		"before it looks for objects": func(k *kv, do func()) { k.beforeList = do },
	} {
		t.Run(name, func(t *testing.T) {
			c, token := emptyCluster(t), newToken(t)
			faster, slower := newServer(t, token), newServer(t, token)
			slow := &kv{KV: c.KV}
			step(slow, func() {
				c.join(t, faster)
				c.put(t, prefix+"namespaces/default", "{}")
			})
			if done := clusterIn(slow, prefix).join(t, slower); done.Stored || !done.Fetched {
				t.Errorf("got %+v, want the slower server to fetch", done)
			}
			if !maps.Equal(faster.keys(t), slower.keys(t)) {
				t.Error("the servers have different keys")
			}
		})
	}
}

// A server is killed when its record is stored, and has written no file.
func TestAServerIsKilledAfterItsRecord(t *testing.T) {
	c, token := emptyCluster(t), newToken(t)
	s := newServer(t, token)
	killed := errors.New("killed")
	if _, err := clusterIn(&kv{KV: c.KV, afterCommit: func() error { return killed }}, prefix).Join(t.Context(), s); !errors.Is(err, killed) {
		t.Fatalf("got %v, want it killed", err)
	}
	if len(content(t, s.Certs.Dir)) > 0 {
		t.Fatal("a file was written before the record")
	}
	other := newServer(t, token)
	for _, s := range []Server{s, other} {
		if done := c.join(t, s); !done.Fetched {
			t.Errorf("got %+v, want the keys of the record", done)
		}
	}
	if !maps.Equal(s.keys(t), other.keys(t)) {
		t.Error("the servers have different keys")
	}
}

func TestAnotherTokenIsRefused(t *testing.T) {
	c := emptyCluster(t)
	one := newServer(t, newToken(t))
	c.join(t, one)
	for _, s := range []Server{newServer(t, newToken(t)), {Certs: one.Certs, Token: newToken(t)}} {
		if err := c.refused(t, s, "--cluster-token-file /the/token", "is not the one"); !errors.Is(err, ErrToken) {
			t.Errorf("got %v, want ErrToken", err)
		}
	}
}

func TestAServerOfAnotherClusterIsRefused(t *testing.T) {
	c, token := emptyCluster(t), newToken(t)
	c.join(t, newServer(t, token))
	c.refused(t, started(t, token), "client-ca.crt", "service-account.key", "are not the cluster's", "--data-dir")

	// One file is enough.
	s := newServer(t, token)
	c.join(t, s)
	for _, name := range []string{"front-proxy-ca.crt", "front-proxy-ca.key"} {
		if err := os.Remove(filepath.Join(s.Certs.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s.issue(t)
	c.refused(t, s, filepath.Join(s.Certs.Dir, "front-proxy-ca.crt")+" is not the cluster's")
}

// A missing key comes back from the record.
func TestAServerThatLostAKey(t *testing.T) {
	c, token := emptyCluster(t), newToken(t)
	s := newServer(t, token)
	c.join(t, s)
	before := content(t, s.Certs.Dir)
	if err := os.Remove(filepath.Join(s.Certs.Dir, "service-account.key")); err != nil {
		t.Fatal(err)
	}
	c.refused(t, Server{Certs: s.Certs}, "is missing", "service-account.key", "--cluster-token-file")
	if done := c.join(t, s); !done.Fetched || !maps.Equal(content(t, s.Certs.Dir), before) {
		t.Errorf("got %+v, and other files than before", done)
	}
}

func TestServersWithoutAToken(t *testing.T) {
	c := emptyCluster(t)
	c.join(t, newServer(t, newToken(t)))
	c.refused(t, newServer(t, nil), "--cluster-token-file", "none of its keys")
	c.refused(t, started(t, nil), "--cluster-token-file", "are not the cluster's")
}

// The first server has no token: it records its fingerprints, so that no other is first.
func TestTheFirstServerHasNoToken(t *testing.T) {
	for name, database := range map[string]bool{"engine": false, "database": true} {
		t.Run(name, func(t *testing.T) {
			c, token := clusterIn(emptyStore(t, database), prefix), newToken(t)
			one := newServer(t, nil)
			if done := c.join(t, one); done != (Outcome{Recorded: true}) {
				t.Errorf("got %+v, want only the fingerprints recorded", done)
			}
			if record := c.stored(t); strings.Contains(record, "sealed") || !strings.Contains(record, one.keys(t)[certs.ServerCA]) {
				t.Errorf("got %s, want fingerprints only", record)
			}
			if done := c.join(t, one); done != (Outcome{}) {
				t.Errorf("it comes back: got %+v, want nothing", done)
			}
			for _, token := range []*Token{nil, token} {
				c.refused(t, newServer(t, token), "none of its keys", "put its keys there", "--cluster-token-file")
				c.refused(t, started(t, token), "are not the cluster's", "--cluster-token-file")
			}
			if err := c.Rotate(t.Context(), token, newToken(t), nil); err == nil || !strings.Contains(err.Error(), "--cluster-token-file") {
				t.Errorf("rotate: got %v", err)
			}
			before := content(t, one.Certs.Dir)
			one.Token = token
			if done := c.join(t, one); !done.Stored || !maps.Equal(content(t, one.Certs.Dir), before) {
				t.Errorf("it gets a token: got %+v, want the keys stored, and no other files", done)
			}
			two := newServer(t, token)
			if done := c.join(t, two); !done.Fetched || !maps.Equal(one.keys(t), two.keys(t)) {
				t.Errorf("the second server: got %+v", done)
			}
		})
	}
}

// Two servers with the keys of a cluster add the sealed part at once: one token counts.
func TestTwoTokensAtOnce(t *testing.T) {
	c, first, second := emptyCluster(t), newToken(t), newToken(t)
	s := newServer(t, nil)
	c.join(t, s)
	s.Token = first
	fast := s
	fast.Token = second
	slow := &kv{KV: c.KV, beforeCommit: func() { c.join(t, fast) }}
	if _, err := clusterIn(slow, prefix).Join(t.Context(), s); !errors.Is(err, ErrToken) {
		t.Errorf("got %v, want ErrToken", err)
	}
	c.join(t, fast)
}

// putAuthorities stores the objects that tell the authorities of s.
func (c Cluster) putAuthorities(t *testing.T, s Server) {
	t.Helper()
	file := func(n certs.Name) string { return content(t, s.Certs.Dir)[string(n)+".crt"] }
	c.put(t, prefix+"namespaces/default", "{}")
	c.putConfigMap(t, "extension-apiserver-authentication", map[string]string{
		"client-ca-file": file(certs.ClientCA), "requestheader-client-ca-file": file(certs.FrontProxyCA),
	})
	c.putConfigMap(t, "kube-root-ca.crt", map[string]string{"ca.crt": file(certs.ServerCA)})
}

func (c Cluster) putConfigMap(t *testing.T, name string, data map[string]string) {
	t.Helper()
	value, err := runtime.Encode(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data,
	})
	if err != nil {
		t.Fatal(err)
	}
	c.put(t, prefix+"configmaps/kube-system/"+name, string(value))
}

// A cluster gets a token: the server that has its keys stores them, and no other can be first.
func TestAnExistingClusterGetsAToken(t *testing.T) {
	for _, token := range []*Token{nil, newToken(t)} {
		c := emptyCluster(t)
		old := started(t, token)
		before := content(t, old.Certs.Dir)
		c.putAuthorities(t, old)
		c.refused(t, newServer(t, token), "none of its keys", "put its keys there")
		c.refused(t, started(t, token), "is not in", "put its keys there")
		if done := c.join(t, old); !done.Recorded || done.Stored != (token != nil) {
			t.Errorf("got %+v, want the keys stored", done)
		}
		if !maps.Equal(content(t, old.Certs.Dir), before) {
			t.Error("its files have changed")
		}
		if token != nil {
			s := newServer(t, token)
			if c.join(t, s); !maps.Equal(s.keys(t), old.keys(t)) {
				t.Error("the second server has other keys")
			}
		}
	}
}

// Each authority must be one that the cluster's objects have.
func TestAnExistingClusterHasOtherAuthorities(t *testing.T) {
	token := newToken(t)
	old, other := started(t, token), started(t, token)
	for _, name := range []string{"client-ca", "front-proxy-ca", "server-ca"} {
		t.Run(name, func(t *testing.T) {
			c := emptyCluster(t)
			c.putAuthorities(t, old)
			s := newServer(t, token)
			if err := os.CopyFS(s.Certs.Dir, os.DirFS(old.Certs.Dir)); err != nil {
				t.Fatal(err)
			}
			for _, ending := range []string{".crt", ".key"} {
				if err := os.WriteFile(filepath.Join(s.Certs.Dir, name+ending), []byte(content(t, other.Certs.Dir)[name+ending]), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			c.refused(t, s, filepath.Join(s.Certs.Dir, name+".crt"), "put its keys there")
		})
	}
}

// The objects are absent, or cannot be read.
func TestAnExistingClusterDoesNotTellItsAuthorities(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(Cluster)
		want    string
	}{
		"absent":    {func(Cluster) {}, "has no /registry/configmaps/kube-system/extension-apiserver-authentication"},
		"encrypted": {func(c Cluster) { c.put(t, prefix+authorities[0].object, "k8s:enc:aescbc:v1:one:...") }, "is encrypted"},
		"empty":     {func(c Cluster) { c.putConfigMap(t, "extension-apiserver-authentication", nil) }, "-ca-file of /registry/"},
	} {
		t.Run(name, func(t *testing.T) {
			c := emptyCluster(t)
			c.put(t, prefix+"namespaces/default", "{}")
			tc.prepare(c)
			c.refused(t, started(t, newToken(t)), "cannot be told", tc.want)
			if done := c.join(t, started(t, nil)); done != (Outcome{}) || c.stored(t) != "" {
				t.Errorf("without a token: got %+v, want nothing recorded", done)
			}
		})
	}

	t.Run("no controllers", func(t *testing.T) {
		c, s := emptyCluster(t), started(t, newToken(t))
		c.putAuthorities(t, s)
		if _, err := c.KV.Delete(t.Context(), prefix+"configmaps/kube-system/kube-root-ca.crt"); err != nil {
			t.Fatal(err)
		}
		c.join(t, s)
	})
}

func TestRotate(t *testing.T) {
	c, before, after := emptyCluster(t), newToken(t), newToken(t)
	if err := c.Rotate(t.Context(), before, after, nil); err == nil || !strings.Contains(err.Error(), "--cluster-token-file") {
		t.Errorf("without a record: got %v", err)
	}
	one := newServer(t, before)
	c.join(t, one)
	_, rotated := c.RotateKeys(t.Context(), after, Authorities, false, nil)
	_, _, encryption := c.Encryption(t.Context(), after)
	for _, err := range []error{c.Rotate(t.Context(), after, before, nil), rotated, encryption} {
		if !errors.Is(err, ErrToken) || !strings.Contains(err.Error(), "--cluster-token-file /the/token") {
			t.Errorf("with another token: got %v, want ErrToken with the file", err)
		}
	}
	if err := c.Rotate(t.Context(), before, after, nil); err != nil {
		t.Fatal(err)
	}
	c.refused(t, one, "is not the one")
	one.Token = after
	two := newServer(t, after)
	c.join(t, one)
	if c.join(t, two); !maps.Equal(one.keys(t), two.keys(t)) {
		t.Error("the servers have different keys")
	}

	// Another rotation comes in between.
	third := newToken(t)
	slow := &kv{KV: c.KV, beforeCommit: func() {
		if err := c.Rotate(t.Context(), after, third, nil); err != nil {
			t.Error(err)
		}
	}}
	if err := clusterIn(slow, prefix).Rotate(t.Context(), after, before, nil); err == nil || !strings.Contains(err.Error(), "meanwhile") {
		t.Errorf("got %v, want it to notice the other rotation", err)
	}
	two.Token = third
	c.join(t, two)
}

// The connection breaks after the commit.
func TestRotationWithUnknownOutcome(t *testing.T) {
	c, before, after := emptyCluster(t), newToken(t), newToken(t)
	s := newServer(t, before)
	c.join(t, s)
	broken := errors.New("the connection is broken")
	err := clusterIn(&kv{KV: c.KV, afterCommit: func() error { return broken }}, prefix).Rotate(t.Context(), before, after, nil)
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "the new token or configuration may be in force") {
		t.Errorf("got %v, want it to say that the rotation may have been done", err)
	}
	s.Token = after
	c.join(t, s)
	full := &kv{KV: c.KV, afterCommit: func() error { return rpctypes.ErrNoSpace }}
	if err := clusterIn(full, prefix).Rotate(t.Context(), after, before, nil); !errors.Is(err, rpctypes.ErrNoSpace) || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("a full disk: got %v, want that nothing was changed", err)
	}
}

// encryption returns the server's copy of the encryption configuration.
func (s Server) encryption(t *testing.T) string {
	return content(t, s.Certs.Dir)[filepath.Base(certs.EncryptionFile(s.Certs.Dir))]
}

// A new cluster gets a configuration if each of its servers can have it.
func TestNewEncryption(t *testing.T) {
	for name, tc := range map[string]struct {
		alone, token, exists bool
		own, want            string
	}{
		"a server alone":                   {alone: true, want: "key-1"},
		"the first of several":             {token: true, want: "key-1"},
		"several without a token":          {},
		"a cluster that exists":            {alone: true, exists: true},
		"a shared cluster that exists":     {token: true, exists: true},
		"a configuration of the user's":    {token: true, own: "key-7"},
		"alone with one of the user's own": {alone: true, own: "key-7"},
	} {
		t.Run(name, func(t *testing.T) {
			c := emptyCluster(t)
			c.PrivateStorage = tc.alone
			var token *Token
			if tc.token {
				token = newToken(t)
			}
			s := started(t, token)
			s.NewEncryption = func() ([]byte, error) { return []byte("key-1"), nil }
			if tc.own != "" {
				s.Encryption = []byte(tc.own)
			}
			if tc.exists {
				c.put(t, prefix+"namespaces/default", "{}")
				c.putAuthorities(t, s)
			}
			for range 2 {
				c.join(t, s)
				if got := s.encryption(t); got != tc.want {
					t.Errorf("got %q, want %q", got, tc.want)
				}
			}
			if tc.token {
				second := newServer(t, token)
				second.NewEncryption = func() ([]byte, error) { return []byte("key-2"), nil }
				if c.join(t, second); second.encryption(t) != tc.want+tc.own {
					t.Errorf("a second server has %q, want %q", second.encryption(t), tc.want+tc.own)
				}
			}
		})
	}
}

// A cluster that began on a server alone is moved to a database: the first server with a token gives the others the key.
func TestNewEncryptionGoesToOtherServers(t *testing.T) {
	c, one := emptyCluster(t), newServer(t, nil)
	c.PrivateStorage, one.NewEncryption = true, func() ([]byte, error) { return []byte("key-1"), nil }
	c.join(t, one)
	c.put(t, prefix+"namespaces/default", "{}")
	c.PrivateStorage, one.Token = false, newToken(t)
	two := newServer(t, one.Token)
	c.join(t, one)
	if c.join(t, two); two.encryption(t) != "key-1" || one.encryption(t) != "key-1" {
		t.Errorf("the servers have %q and %q", one.encryption(t), two.encryption(t))
	}
}

// A start finds out that it lacks the key of Secrets.
func TestUnreadableSecretsAreNamed(t *testing.T) {
	c, file := emptyCluster(t), filepath.Join(t.TempDir(), "encryption.yaml")
	find := func(encryption, want string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(encryption), 0o600); err != nil {
			t.Fatal(err)
		}
		if encryption == "" {
			os.Remove(file)
		}
		each := func(do func(string, []byte) bool) {
			got, err := c.KV.Get(t.Context(), prefix, clientv3.WithPrefix())
			if err != nil {
				t.Fatal(err)
			}
			for _, kv := range got.Kvs {
				if !do(string(kv.Key), kv.Value) {
					return
				}
			}
		}
		for _, got := range []error{c.CheckReadable(t.Context(), file, false), c.CheckReadable(t.Context(), file, true), c.CheckReadableIn(each, file)} {
			if (got == nil) != (want == "") || got != nil && !strings.Contains(got.Error(), want) {
				t.Errorf("with %q: got %v, want %q", encryption, got, want)
			}
		}
	}
	find("", "")
	c.put(t, prefix+"secrets/a/plain", "x")
	c.put(t, prefix+"secretsofmine/a/plain", "k8s:enc:secretbox:v1:key-0:x")
	find("", "")
	c.put(t, prefix+"secrets/b/sealed", "k8s:enc:secretbox:v1:key-1:x")
	find("", "b/sealed could not be read: its key, key-1 of secretbox")
	find("key-2", "b/sealed")
	find("key-2 key-1", "")
	find("invalid", "is no good")
	kept := file + ".before-key-2"
	if err := os.WriteFile(kept, []byte("key-1"), 0o600); err != nil {
		t.Fatal(err)
	}
	find("key-2", kept+" has it")
}

func TestEncryptionIsTheClusters(t *testing.T) {
	c, token := emptyCluster(t), newToken(t)
	one, other := newServer(t, token), newServer(t, token)
	one.Encryption, other.Encryption = []byte("keys: one"), []byte("keys: two")
	c.join(t, one)
	two := newServer(t, token)
	c.join(t, two)
	if got := two.encryption(t); got != string(one.Encryption) {
		t.Errorf("got %q, want the first server's", got)
	}
	if info, err := os.Stat(certs.EncryptionFile(two.Certs.Dir)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v", info, err)
	}
	if c.join(t, one); one.encryption(t) != "" {
		t.Error("a server with a file of its own got another")
	}
	err := c.refused(t, other, "--encryption-provider-config", "karve cluster-token rotate")
	if strings.Contains(err.Error(), "keys:") {
		t.Errorf("the error has a key in it: %v", err)
	}
	rotate := func(content []byte) {
		t.Helper()
		if err := c.Rotate(t.Context(), token, token, &content); err != nil {
			t.Fatal(err)
		}
	}
	rotate(other.Encryption)
	c.join(t, other)
	own := two
	own.Encryption = other.Encryption
	for name, s := range map[string]Server{"with": own, "without": two} {
		if c.join(t, s); two.encryption(t) != string(other.Encryption) {
			t.Errorf("a server that comes back %s a file of its own has the old configuration", name)
		}
	}
	rotate(nil)
	if c.join(t, two); two.encryption(t) != "" {
		t.Error("a server that comes back has the configuration that was removed")
	}
	if content(t, two.Certs.Dir)["encryption-provider-config.yaml.old"] != string(other.Encryption) {
		t.Error("the keys of stored objects are lost")
	}
	c.refused(t, other, "stored without it")
}

// No configuration comes into force that lacks the key of a Secret which could be read until then.
func TestEncryptionKeepsTheKeysOfSecrets(t *testing.T) {
	c, token := emptyCluster(t), newToken(t)
	one, away := newServer(t, token), newServer(t, token)
	one.Encryption = []byte("keys: one")
	c.join(t, one)
	c.join(t, away)
	rotate := func(content []byte) error { return c.Rotate(t.Context(), token, token, &content) }
	if err := rotate([]byte("keys: one two")); err != nil {
		t.Fatal(err)
	}
	c.put(t, prefix+"secrets/default/s", "k8s:enc:secretbox:v1:two:x")
	refused := func(err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "default/s") || !strings.Contains(err.Error(), "key two") {
			t.Errorf("got %v, want the Secret and its key", err)
		}
	}
	refused(rotate([]byte("keys: one")))
	refused(rotate(nil))
	refused(c.Reseal(t.Context(), away.Certs.Dir, newToken(t), nil)) // it has missed the second key
	all := []byte("keys: two")
	if err := c.Reseal(t.Context(), away.Certs.Dir, token, &all); err != nil {
		t.Error(err)
	}
	c.put(t, prefix+"secrets/default/lost", "k8s:enc:secretbox:v1:one:x")
	if err := rotate([]byte("keys: two three")); err != nil {
		t.Errorf("a Secret that could not be read before: %v", err)
	}
}

// A server that has fetched the configuration stores it again if the record was lost.
// The datastore is not there any more, or it is another one: keys that have served a cluster make no new one.
func TestKeysThatHaveServedMakeNoNewCluster(t *testing.T) {
	for _, database := range []bool{false, true} {
		c, s := clusterIn(emptyStore(t, database), prefix), started(t, nil)
		s.Lasting = true
		c.join(t, s) // keys of the user's are fine
		if err := Served(s.Certs.Dir); err != nil {
			t.Fatal(err)
		}
		c.join(t, s)
		empty := clusterIn(emptyStore(t, database), prefix)
		for _, c := range []Cluster{empty, clusterIn(c.KV, "/other/")} {
			for _, call := range []error{c.Check(t.Context(), s), func() error { _, err := c.Join(t.Context(), s); return err }()} {
				if !errors.Is(call, ErrEmpty) || !strings.Contains(call.Error(), filepath.Join(s.Certs.Dir, "served")) {
					t.Errorf("database %v: got %v, want ErrEmpty that names the file", database, call)
				}
			}
			if r, _, err := c.read(t.Context()); r != nil || err != nil {
				t.Errorf("the refused start has recorded %v, %v", r, err)
			}
		}
		inMemory := s
		inMemory.Lasting = false
		clusterIn(emptyStore(t, database), prefix).join(t, inMemory)
		if err := os.Remove(filepath.Join(s.Certs.Dir, "served")); err != nil {
			t.Fatal(err)
		}
		empty.join(t, s)
	}
}

func TestTheRecordIsLost(t *testing.T) {
	c, token := emptyCluster(t), newToken(t)
	one, two, three := newServer(t, token), newServer(t, token), newServer(t, token)
	one.Encryption = []byte("keys: one")
	c.join(t, one)
	c.join(t, two)
	if _, err := c.KV.Delete(t.Context(), c.key()); err != nil {
		t.Fatal(err)
	}
	if done := c.join(t, two); !done.Stored {
		t.Errorf("got %+v, want the keys stored", done)
	}
	c.join(t, three)
	if got := content(t, three.Certs.Dir)["encryption-provider-config.yaml"]; got != string(one.Encryption) {
		t.Errorf("got %q, want the cluster's configuration", got)
	}
	c.join(t, one)
}

// A configuration that no API server accepts does not become the cluster's.
func TestInvalidEncryption(t *testing.T) {
	c, token := emptyCluster(t), newToken(t)
	s, fetched := newServer(t, token), newServer(t, token)
	invalid := []byte("invalid")
	s.Encryption = invalid
	c.refused(t, s, "--encryption-provider-config: is no good")
	file := certs.EncryptionFile(fetched.Certs.Dir)
	if err := errors.Join(os.MkdirAll(fetched.Certs.Dir, 0o700), os.WriteFile(file, invalid, 0o600)); err != nil {
		t.Fatal(err)
	}
	c.refused(t, fetched, file+": is no good")
	s.Encryption = nil
	c.join(t, s)
	before := c.stored(t)
	if err := c.Rotate(t.Context(), token, token, &invalid); err == nil || !strings.Contains(err.Error(), "--encryption-provider-config: is no good") || c.stored(t) != before {
		t.Errorf("rotate: got %v", err)
	}
}

func TestRecordsThatCannotBe(t *testing.T) {
	c, token := emptyCluster(t), newToken(t)
	c.join(t, newServer(t, token))
	good := c.stored(t)
	r, err := parse([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	change := func(do func(*record)) string {
		other := *r
		other.Keys, other.Sealed = maps.Clone(r.Keys), slices.Clone(r.Sealed)
		do(&other)
		return encode(t, other)
	}
	for name, tc := range map[string]struct{ value, want string }{
		"no JSON":          {"nonsense", "is damaged"},
		"no record":        {"{}", "is damaged"},
		"newer":            {change(func(r *record) { r.Format = 2 }), "newer Karve"},
		"a key less":       {change(func(r *record) { delete(r.Keys, certs.ServerCA) }), "is damaged"},
		"other keys":       {change(func(r *record) { r.Keys[certs.ClientCA] = "00" }), "is damaged"},
		"cut":              {change(func(r *record) { r.Sealed = r.Sealed[:len(r.Sealed)-1] }), "is damaged"},
		"changed":          {change(func(r *record) { r.Sealed[len(r.Sealed)-1] ^= 1 }), "is damaged"},
		"too much to work": {change(func(r *record) { r.Sealed = []byte(strings.Replace(string(r.Sealed), " 15\n", " 18\n", 1)) }), "work factor"},
	} {
		t.Run(name, func(t *testing.T) {
			c.put(t, c.key(), tc.value)
			c.refused(t, newServer(t, token), prefix+"karve/cluster", tc.want)
			if err := c.Rotate(t.Context(), token, newToken(t), nil); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("rotate: got %v", err)
			}
		})
	}
}
