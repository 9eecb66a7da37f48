package certs

import (
	"crypto/x509"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func makeShared(t *testing.T, b *testbed) Shared {
	t.Helper()
	s, err := MakeShared(b.Config)
	fatal(t, err)
	return s
}

func fingerprints(t *testing.T, s Shared) map[Name]string {
	t.Helper()
	all, err := s.Fingerprints()
	fatal(t, err)
	return all
}

func readShared(t *testing.T, b *testbed) Shared {
	t.Helper()
	s, err := ReadShared(b.Dir)
	fatal(t, err)
	return s
}

// What a server makes is written by two servers, and what one of them issues is valid for the other.
func TestServersShareAuthorities(t *testing.T) {
	one, two := newTestbed(t), newTestbed(t)
	made := makeShared(t, one)
	if _, err := os.Stat(one.Dir); err == nil {
		t.Error("MakeShared has written something")
	}
	if got, want := slices.Sorted(maps.Keys(made)), slices.Sorted(slices.Values(SharedNames())); !slices.Equal(got, want) || len(want) != 4 {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, b := range []*testbed{one, two} {
		if _, err := made.Take(b.Config, nil); err != nil {
			t.Fatal(err)
		}
		b.ensure(t)
		b.verify(t)
		if got, want := fingerprints(t, readShared(t, b)), fingerprints(t, made); !maps.Equal(got, want) {
			t.Errorf("got keys %v, want %v", got, want)
		}
	}
	roots := x509.NewCertPool()
	roots.AddCert(one.cert(t, ServerCA))
	if _, err := two.cert(t, Serving).Verify(x509.VerifyOptions{Roots: roots, CurrentTime: today}); err != nil {
		t.Errorf("the second server's certificate, for clients of the first: %v", err)
	}
	if one.cert(t, Serving).Equal(two.cert(t, Serving)) {
		t.Error("both servers have the same leaf")
	}
}

// A renewed authority is the same one.
func TestFingerprintsSurviveARenewal(t *testing.T) {
	b := newTestbed(t)
	b.ensure(t)
	before := readShared(t, b)
	b.now = today.AddDate(9, 0, 0)
	b.ensure(t)
	after := readShared(t, b)
	if string(before[ClientCA].Cert) == string(after[ClientCA].Cert) {
		t.Fatal("the authority was not renewed")
	}
	if !maps.Equal(fingerprints(t, before), fingerprints(t, after)) {
		t.Error("the fingerprints differ")
	}
}

// Files that are there stay, whoever made them, and those that are missing are written.
func TestTakeChangesNothing(t *testing.T) {
	b := newTestbed(t)
	user := newUserCA(t, "their CA", ecKey(t), nil, today.AddDate(20, 0, 0))
	b.put(t, "client-ca.crt", encodeCerts(certsOf(user)))
	b.put(t, "client-ca.key", keyPEM(t, user.key, "PRIVATE KEY"))
	if got := readShared(t, b); len(got) != 1 || got[ClientCA].Key == nil {
		t.Errorf("got %v, want their CA only", slices.Collect(maps.Keys(got)))
	}
	made := makeShared(t, b)
	b.put(t, "front-proxy-ca.key", made[FrontProxyCA].Key) // as a power cut leaves it
	before := b.files(t)
	if _, err := made.Take(b.Config, nil); err != nil {
		t.Fatal(err)
	}
	after := b.files(t)
	for name, content := range before {
		if after[name] != content {
			t.Errorf("%s has changed", name)
		}
	}
	b.ensure(t)
	if got, want := fingerprints(t, readShared(t, b)), fingerprints(t, made); !maps.Equal(got, want) {
		t.Errorf("got keys %v, want %v", got, want)
	}
	if got, want := string(readShared(t, b)[FrontProxyCA].Cert), string(made[FrontProxyCA].Cert); got != want {
		t.Error("the key of the front proxy's CA has another certificate than the cluster's")
	}
}

func TestFingerprintsRefuse(t *testing.T) {
	made := makeShared(t, newTestbed(t))
	for name, change := range map[string]func(Shared){
		"another's key": func(s Shared) { s[ClientCA] = Pair{Cert: s[ClientCA].Cert, Key: s[ServerCA].Key} },
		"a leaf":        func(s Shared) { s[Admin] = s[ClientCA] },
		"nothing":       func(s Shared) { s[ServiceAccount] = Pair{} },
		"no PEM":        func(s Shared) { s[ServiceAccount] = Pair{Key: []byte("no key")} },
	} {
		s := maps.Clone(made)
		change(s)
		if _, err := s.Fingerprints(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestReadSharedNamesADamagedFile(t *testing.T) {
	b := newTestbed(t)
	b.ensure(t)
	fatal(t, os.WriteFile(filepath.Join(b.Dir, "client-ca.key"), nil, 0o600))
	if _, err := ReadShared(b.Dir); !errors.Is(err, ErrCorrupt) {
		t.Errorf("got %v, want ErrCorrupt", err)
	}
}
