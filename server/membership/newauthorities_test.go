package membership

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/kine/inprocess"
)

// lose removes the files of some names.
func (s Server) lose(t *testing.T, names ...certs.Name) {
	t.Helper()
	for _, name := range names {
		for _, ending := range []string{".crt", ".key"} {
			if err := os.Remove(filepath.Join(s.Certs.Dir, string(name)+ending)); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
		}
	}
}

var namedID = regexp.MustCompile(`--new-authorities (\S+),`)

// idIn returns the value of --new-authorities that an error names.
func idIn(t *testing.T, err error) string {
	t.Helper()
	match := namedID.FindStringSubmatch(err.Error())
	if match == nil || CheckID(match[1]) != nil {
		t.Fatalf("got %q, want it to name --new-authorities and its value", err)
	}
	return match[1]
}

// Whatever is missing or differs, a start is refused until the user names the record that the server's keys
// are to replace. That works once.
func TestNewAuthorities(t *testing.T) {
	for name, change := range map[string]func(*testing.T, Server){
		"an authority is lost":   func(t *testing.T, s Server) { s.lose(t, certs.ClientCA) },
		"the token key is lost":  func(t *testing.T, s Server) { s.lose(t, certs.ServiceAccount) },
		"all keys are lost":      func(t *testing.T, s Server) { s.lose(t, certs.SharedNames()...) },
		"an authority is my own": func(t *testing.T, s Server) { s.lose(t, certs.FrontProxyCA); s.issue(t) },
		"all keys are others":    func(t *testing.T, s Server) { s.lose(t, certs.SharedNames()...); s.issue(t) },
	} {
		for _, kind := range []string{"alone", "engine", "database"} {
			for _, recorded := range []bool{true, false} {
				t.Run(kind+", "+name+map[bool]string{true: "", false: ", no record"}[recorded], func(t *testing.T) {
					c := clusterIn(emptyStore(t, kind == "database"), prefix)
					c.PrivateStorage = kind == "alone"
					s := newServer(t, nil)
					if recorded {
						c.join(t, s)
					}
					s.issue(t)
					c.putAuthorities(t, s)
					before := s.keys(t)
					change(t, s)
					s.NewAuthorities = "0123456789abcdef"
					err := c.refused(t, s, s.Certs.Dir)
					if !errors.Is(err, ErrOther) || (idIn(t, err) == unrecorded) == recorded {
						t.Errorf("got %v, want ErrOther", err)
					}
					had := s.keys(t)
					s.NewAuthorities = idIn(t, err)
					if done := c.join(t, s); !done.Replaced || !done.Recorded {
						t.Errorf("got %+v, want the keys replaced", done)
					}
					after := s.keys(t)
					if len(after) != len(certs.SharedNames()) || maps.Equal(after, before) {
						t.Error("the server has no new keys")
					}
					for name, key := range had {
						if after[name] != key {
							t.Errorf("%s has changed, which was there", name)
						}
					}
					// The option can stay.
					if done := c.join(t, s); done != (Outcome{}) {
						t.Errorf("the next start: got %+v, want nothing", done)
					}
					s.lose(t, certs.ServerCA)
					if again := c.refused(t, s); idIn(t, again) == s.NewAuthorities {
						t.Error("the option works a second time")
					}
				})
			}
		}
	}
}

// With a token, the new keys are stored for the other servers. What is only missing comes from the record.
func TestNewAuthoritiesWithAToken(t *testing.T) {
	c, token := emptyCluster(t), newToken(t)
	one := newServer(t, token)
	c.join(t, one)
	one.lose(t, certs.ClientCA)
	one.issue(t)
	one.NewAuthorities = idIn(t, c.refused(t, one, "client-ca.crt is not the cluster's"))
	if done := c.join(t, one); !done.Replaced || !done.Stored {
		t.Errorf("got %+v, want the new keys stored", done)
	}
	two := newServer(t, token)
	if done := c.join(t, two); !done.Fetched || !maps.Equal(one.keys(t), two.keys(t)) {
		t.Errorf("another server: got %+v, want the new keys", done)
	}
	two.lose(t, certs.ServiceAccount)
	two.NewAuthorities = idIn(t, c.refused(t, Server{Certs: two.Certs}))
	if done := c.join(t, two); !done.Fetched || done.Replaced {
		t.Errorf("a server that lost a key: got %+v, want it fetched", done)
	}
}

// A server that is alone writes its keys before the record: a kill leaves no record whose keys are nowhere.
func TestAServerAloneIsKilled(t *testing.T) {
	killed := errors.New("killed")
	for name, step := range map[string]func(*kv){
		"before the record": func(k *kv) { k.beforeCommit = func() { panic(killed) } },
		"after the record":  func(k *kv) { k.afterCommit = func() error { return killed } },
	} {
		t.Run(name, func(t *testing.T) {
			c, s := emptyCluster(t), newServer(t, nil)
			c.PrivateStorage = true
			made := 0
			s.NewEncryption = func() ([]byte, error) { made++; return fmt.Appendf(nil, "key-%d", made), nil }
			dying := &kv{KV: c.KV}
			step(dying)
			func() {
				defer func() {
					if died := recover(); died != nil && died != killed {
						panic(died)
					}
				}()
				broken := c
				broken.KV = dying
				if _, err := broken.Join(t.Context(), s); !errors.Is(err, killed) {
					t.Errorf("got %v, want it killed", err)
				}
			}()
			keys := s.keys(t)
			if c.join(t, s); len(keys) != len(certs.SharedNames()) || !maps.Equal(keys, s.keys(t)) {
				t.Errorf("the keys are %v, and were %v", s.keys(t), keys)
			}
			if got := s.encryption(t); got != "key-1" {
				t.Errorf("the encryption configuration is %q, want the first one", got)
			}
		})
	}
}

// The record is read in the file of a datastore that no server uses.
func TestCheckOfAFile(t *testing.T) {
	dir := t.TempDir()
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	engine, err := datastore.OpenEngine(lock, datastore.Options{BallastBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	shim, err := kine.Serve(t.Context(), engine, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	client, err := inprocess.NewClient(shim.LocalEndpoint())
	if err != nil {
		t.Fatal(err)
	}
	c, s := clusterIn(client.KV, prefix), newServer(t, nil)
	c.put(t, prefix+"namespaces/gone", "{}")
	if _, err := c.KV.Delete(t.Context(), prefix+"namespaces/gone"); err != nil {
		t.Fatal(err)
	}
	c.join(t, s) // a new cluster: no namespace is there any more
	c.put(t, prefix+"namespaces/default", "{}")
	_ = client.Close() // it says that its context has ended
	if err := errors.Join(shim.Close(), engine.Close()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, sqlitefile.FileName)
	closed := clusterIn(File(path), prefix)
	if err := closed.Check(t.Context(), s); err != nil {
		t.Error(err)
	}
	s.lose(t, certs.ServerCA)
	if err := closed.Check(t.Context(), s); !errors.Is(err, ErrOther) {
		t.Errorf("got %v, want ErrOther", err)
	} else if s.NewAuthorities = idIn(t, err); closed.Check(t.Context(), s) != nil {
		t.Error("the option is not heeded")
	}
	if _, err := File(filepath.Join(dir, "none")).Get(t.Context(), "a"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: got %v", err)
	}
}

// A server whose option names another authority of the front proxy has that one in the cluster's objects.
func TestAnotherFrontProxy(t *testing.T) {
	c, s := emptyCluster(t), newServer(t, nil)
	s.issue(t)
	c.putAuthorities(t, s)
	s.lose(t, certs.FrontProxyCA)
	s.issue(t)
	c.refused(t, s, "front-proxy-ca.crt is not in requestheader-client-ca-file")
	s.OtherFrontProxy = true
	if done := c.join(t, s); !done.Recorded || done.Replaced {
		t.Errorf("got %+v, want its keys recorded", done)
	}
}

// A server whose keys were replaced starts although a kill came before the record, as its files trust the former ones. After that it
// needs the record.
func TestReplacedKeys(t *testing.T) {
	for _, recorded := range []bool{true, false} {
		c, s := emptyCluster(t), newServer(t, nil)
		c.join(t, s)
		s.issue(t)
		store, _, err := certs.Ensure(s.Certs)
		if err != nil {
			t.Fatal(err)
		}
		for _, serviceAccount := range []bool{false, true} {
			if _, err := store.Replace(serviceAccount); err != nil {
				t.Fatal(err)
			}
		}
		if done := c.join(t, s); done != (Outcome{}) {
			t.Errorf("got %+v, want nothing", done)
		}
		if recorded {
			if err := c.Rekey(t.Context(), s.Certs.Dir); err != nil {
				t.Fatal(err)
			}
		}
		for _, serviceAccount := range []bool{false, true} {
			if _, err := store.DropFormer(serviceAccount); err != nil {
				t.Fatal(err)
			}
		}
		if recorded {
			c.join(t, s)
		} else {
			c.refused(t, s, "client-ca.crt", "service-account.key", "are not the cluster's")
		}
		stranger := started(t, nil)
		if err := c.Rekey(t.Context(), stranger.Certs.Dir); !errors.Is(err, ErrOther) {
			t.Errorf("another cluster's keys: got %v, want ErrOther", err)
		}
	}
}

// A server that has the keys replaces a token that is lost.
func TestLostToken(t *testing.T) {
	c, next := emptyCluster(t), newToken(t)
	one := newServer(t, newToken(t))
	c.join(t, one)
	if err := c.Reseal(t.Context(), started(t, nil).Certs.Dir, next, nil); err == nil {
		t.Error("another cluster's keys have replaced the record")
	}
	if err := c.Reseal(t.Context(), one.Certs.Dir, next, nil); err != nil {
		t.Fatal(err)
	}
	two := newServer(t, next)
	if done := c.join(t, two); !done.Fetched || !maps.Equal(one.keys(t), two.keys(t)) {
		t.Errorf("a server with the new token: got %+v, want the keys", done)
	}
	c.refused(t, one, "is not the one of the cluster")
	one.lose(t, certs.ServiceAccount)
	if err := c.Reseal(t.Context(), one.Certs.Dir, next, nil); err == nil {
		t.Error("a server without all keys has replaced the record")
	}
}
