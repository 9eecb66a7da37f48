package certs

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func certsOf(cas ...userCA) []*x509.Certificate {
	var out []*x509.Certificate
	for _, ca := range cas {
		out = append(out, ca.cert)
	}
	return out
}

func TestUsersCA(t *testing.T) {
	end := today.AddDate(20, 0, 0)
	root := newUserCA(t, "root", rsaKey(t), nil, end)
	for _, c := range []struct {
		name  string
		ca    userCA
		certs []*x509.Certificate
		form  string
	}{
		{"RSA PKCS#1", root, certsOf(root), "RSA PRIVATE KEY"},
		{"RSA PKCS#8", root, certsOf(root), "PRIVATE KEY"},
		{"EC PKCS#8", newUserCA(t, "ec", ecKey(t), nil, end), nil, "PRIVATE KEY"},
		{"EC SEC 1", newUserCA(t, "ec", ecKey(t), nil, end), nil, "EC PRIVATE KEY"},
		{"intermediate and root", newUserCA(t, "middle", ecKey(t), &root, end), certsOf(root), "PRIVATE KEY"},
	} {
		t.Run(c.name, func(t *testing.T) {
			certs := c.certs
			if len(certs) == 0 || certs[0] != c.ca.cert {
				certs = append([]*x509.Certificate{c.ca.cert}, certs...)
			}
			b := newTestbed(t)
			crt, key := encodeCerts(certs), keyPEM(t, c.ca.key, c.form)
			for _, n := range []string{"server-ca", "client-ca", "front-proxy-ca"} {
				b.put(t, n+".crt", crt)
				b.put(t, n+".key", key)
			}
			s, notes := b.ensure(t)
			if len(notes) != 0 {
				t.Errorf("notes: %v", texts(notes))
			}
			b.verify(t, today)
			b.now = today.AddDate(1, 0, 0)
			if got, _, err := s.Renew(); err != nil || !slices.Equal(got, leaves) {
				t.Errorf("renewed %v, %v", got, err)
			}
			b.verify(t, b.now)
			files := b.files(t)
			if files["client-ca.crt"] != string(crt) || files["client-ca.key"] != string(key) {
				t.Error("the user's CA was overwritten")
			}
			for _, n := range []Name{ServerCA, ClientCA} {
				one, err := os.ReadFile(s.SignerFile(n))
				if err != nil || string(one) != string(encodeCerts(certs[:1])) {
					t.Errorf("SignerFile %s does not hold the one certificate: %v", s.SignerFile(n), err)
				}
			}
			if _, _, err := s.ForceRenew(ServerCA); !errors.Is(err, ErrUserSupplied) {
				t.Errorf("ForceRenew of a user's CA: %v", err)
			}
		})
	}
}

// An older authority that clients still have to trust stays where it is.
func TestOldAndNewAuthority(t *testing.T) {
	b := newTestbed(t)
	b.ensure(t)
	old, own := newUserCA(t, "old", ecKey(t), nil, today.AddDate(20, 0, 0)), b.cert(t, ServerCA)
	b.put(t, "server-ca.crt", encodeCerts([]*x509.Certificate{old.cert, own}))
	s, notes := b.ensure(t)
	if len(notes) != 0 {
		t.Errorf("notes: %v", texts(notes))
	}
	if one := read(t, s.SignerFile(ServerCA)); one != string(encodeCerts([]*x509.Certificate{own})) {
		t.Errorf("SignerFile has %s, want the authority whose key is there", one)
	}
	if _, _, err := s.ForceRenew(ServerCA); err != nil {
		t.Fatal(err)
	}
	b.verify(t, today)
	all, err := s.certificates(ServerCA)
	if err != nil || len(all) != 2 || all[0].Equal(own) || !samePublic(all[0].PublicKey, own.PublicKey) || !all[1].Equal(old.cert) {
		t.Errorf("after a renewal: %d certificates (%v), want the renewed one and the old authority", len(all), err)
	}
	if one := read(t, s.SignerFile(ServerCA)); one != string(encodeCerts(all[:1])) {
		t.Errorf("SignerFile after a renewal has %s", one)
	}
}

// TestUsersCAEnds: leaves end with the CA, and are not renewed in vain.
func TestUsersCAEnds(t *testing.T) {
	b := newTestbed(t)
	ca := newUserCA(t, "short", ecKey(t), nil, today.AddDate(0, 1, 0))
	b.put(t, "server-ca.crt", encodeCerts(certsOf(ca)))
	b.put(t, "server-ca.key", keyPEM(t, ca.key, "PRIVATE KEY"))
	s, notes := b.ensure(t)
	if !strings.Contains(texts(notes), "server-ca: expires on 2026-12-21") {
		t.Errorf("notes: %q", texts(notes))
	}
	if got := b.cert(t, Serving).NotAfter; !got.Equal(ca.cert.NotAfter) {
		t.Errorf("serving ends %v, its CA %v", got, ca.cert.NotAfter)
	}
	b.now = today.AddDate(0, 0, 29)
	if got, _, err := s.Renew(); err != nil || len(got) != 0 {
		t.Errorf("renewed %v, %v", got, err)
	}
	// Expiry is reported and not fatal, because the clock may be wrong.
	b.now = today.AddDate(0, 2, 0)
	s.cfg.ExtraSANs = []string{"new.example.com"}
	_, notes, err := s.Renew()
	if err != nil || !strings.Contains(texts(notes), "server-ca: expired on 2026-12-21") || !strings.Contains(texts(notes), "serving: should be renewed") {
		t.Errorf("%v, notes: %q", err, texts(notes))
	}
	b.remove(t, "serving.crt")
	if _, _, err := Ensure(b.Config); !errors.Is(err, ErrCAExpired) || !strings.Contains(err.Error(), "server-ca.crt") {
		t.Errorf("an expired CA that has to sign: %v", err)
	}
}

func TestMissingCAKey(t *testing.T) {
	b := newTestbed(t)
	b.ensure(t)
	b.remove(t, "server-ca.key")
	before := b.files(t)
	s, notes := b.ensure(t)
	if said := texts(notes); len(notes) != 1 || !strings.Contains(said, "server-ca.key is missing: neither ") || !strings.Contains(said, "karve backup") {
		t.Errorf("notes: %v, want what cannot be renewed, and what to do", said)
	}
	b.now = today.AddDate(0, 9, 0) // due: reported
	if _, notes, err := s.Renew(); err != nil || !strings.Contains(texts(notes), "server-ca.key is needed") {
		t.Errorf("%v, notes: %q", err, texts(notes))
	}
	b.now = today.AddDate(2, 0, 0) // expired
	for what, prepare := range map[string]func(){
		"expired": func() {},
		"missing": func() { b.now = today; b.remove(t, "serving.crt") },
	} {
		prepare()
		_, _, err := Ensure(b.Config)
		if !errors.Is(err, ErrKeyMissing) || !strings.Contains(err.Error(), filepath.Join(b.Dir, "server-ca.key")) {
			t.Errorf("leaf %s: %v", what, err)
		}
	}
	if b.files(t)["server-ca.crt"] != before["server-ca.crt"] {
		t.Error("the CA was overwritten")
	}
}

func TestUsersLeaf(t *testing.T) {
	b := newTestbed(t)
	b.ensure(t)
	own, err := loadPair(b.Dir, table[0])
	fatal(t, err)
	ca := userCA{own.main, own.key}
	other := newUserCA(t, "public", ecKey(t), nil, today.AddDate(5, 0, 0))
	key := rsaKey(t)
	all := []string{"board", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"}
	for _, c := range []struct {
		name string
		leaf *x509.Certificate
		key  crypto.Signer
		note string
		err  error
	}{
		{"good", ca.leaf(t, "api", key.Public(), x509.ExtKeyUsageServerAuth, today.AddDate(3, 0, 0), all...), key, "is not valid for 10.43.0.1, 127.0.0.1, 192.168.1.5, ::1", nil},
		{"due", ca.leaf(t, "api", key.Public(), x509.ExtKeyUsageServerAuth, today.AddDate(0, 0, 9), all...), key, "expires on 2026-11-30; ", nil},
		{"expired", ca.leaf(t, "api", key.Public(), x509.ExtKeyUsageServerAuth, today.AddDate(0, 0, -1), all...), key, "expired on 2026-11-20; ", nil},
		{"of another CA", other.leaf(t, "api", key.Public(), x509.ExtKeyUsageServerAuth, today.AddDate(3, 0, 0), all...), key, "clients that trust", nil},
		{"no key", ca.leaf(t, "api", key.Public(), x509.ExtKeyUsageServerAuth, today.AddDate(3, 0, 0)), nil, "", ErrKeyMissing},
		{"wrong key", ca.leaf(t, "api", key.Public(), x509.ExtKeyUsageServerAuth, today.AddDate(3, 0, 0)), ecKey(t), "", ErrMismatch},
	} {
		t.Run(c.name, func(t *testing.T) {
			os.Remove(filepath.Join(b.Dir, "serving.key"))
			b.put(t, "serving.crt", encodeCerts([]*x509.Certificate{c.leaf}))
			if c.key != nil {
				b.put(t, "serving.key", keyPEM(t, c.key, "PRIVATE KEY"))
			}
			before := b.files(t)
			s, notes, err := Ensure(b.Config)
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if c.err == nil {
				if !strings.Contains(texts(notes), c.note) {
					t.Errorf("notes %q, want %q", texts(notes), c.note)
				}
				if _, _, err := s.ForceRenew(Serving); !errors.Is(err, ErrUserSupplied) {
					t.Errorf("ForceRenew: %v", err)
				}
			}
			if diff := changed(before, b.files(t)); len(diff) != 0 {
				t.Errorf("changed %v", diff)
			}
		})
	}
}

func TestUnusableFiles(t *testing.T) {
	ec := keyPEM(t, ecKey(t), "EC PRIVATE KEY")
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	fatal(t, err)
	leaf := newUserCA(t, "x", ecKey(t), nil, today.AddDate(1, 0, 0)).leaf(t, "not a CA", ed.Public(), x509.ExtKeyUsageServerAuth, today.AddDate(1, 0, 0))
	secret := "MHcCAQEEIVERYSECRET"
	for _, c := range []struct {
		file string
		data string
		want error
	}{
		{"server-ca.crt", "", ErrCorrupt},
		{"server-ca.key", "\n\n", ErrCorrupt},
		{"server-ca.crt", "-----BEGIN EC PRIVATE KEY-----\n" + secret + "\n-----END EC PRIVATE KEY-----\n" + string(encodeCerts([]*x509.Certificate{leaf})), ErrCorrupt},
		{"admin.crt", "rubbish", ErrCorrupt},
		{"admin.key", "-----BEGIN EC PRIVATE KEY-----\n" + secret + "\n-----END EC PRIVATE KEY-----\n", ErrCorrupt},
		{"admin.key", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n", ErrCorrupt},
		{"serving.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", ErrCorrupt},
		{"service-account.key", string(keyPEM(t, ed, "PRIVATE KEY")), ErrCorrupt},
		{"client-ca.key", string(ec), ErrMismatch},
		{"client-ca.crt", string(encodeCerts([]*x509.Certificate{leaf})), ErrMismatch},
	} {
		b := newTestbed(t)
		b.ensure(t)
		b.put(t, c.file, []byte(c.data))
		before := b.files(t)
		b.now = today.AddDate(1, 0, 0)
		_, _, err := Ensure(b.Config)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), filepath.Join(b.Dir, c.file)) {
			t.Errorf("%s: error %v, want %v", c.file, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("a secret in %v", err)
		}
		if diff := changed(before, b.files(t)); len(diff) != 0 {
			t.Errorf("%s: changed %v", c.file, diff)
		}
		infos, err := List(b.Dir, b.now)
		name := Name(strings.TrimSuffix(c.file, filepath.Ext(c.file)))
		i := slices.IndexFunc(infos, func(i Info) bool { return i.Name == name })
		if err != nil || name != ServiceAccount && infos[i].Problem == "" {
			t.Errorf("%s: List says %v, %v", c.file, infos, err)
		}
	}
	// A leaf in place of a CA, without a key to mismatch.
	b := newTestbed(t)
	b.put(t, "client-ca.crt", encodeCerts([]*x509.Certificate{leaf}))
	if _, _, err := Ensure(b.Config); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a leaf as CA: %v", err)
	}
}

func TestReadableKey(t *testing.T) {
	b := newTestbed(t)
	s, _ := b.ensure(t)
	fatal(t, os.Chmod(s.KeyFile(ClientCA), 0o644))
	if _, notes := b.ensure(t); !strings.Contains(texts(notes), "chmod 600") {
		t.Errorf("notes: %q", texts(notes))
	}
}

func TestUsersServiceAccountKey(t *testing.T) {
	for _, form := range []string{"RSA PRIVATE KEY", "PRIVATE KEY"} {
		b := newTestbed(t)
		key := keyPEM(t, rsaKey(t), form)
		b.put(t, "service-account.key", key)
		b.ensure(t)
		if b.files(t)["service-account.key"] != string(key) {
			t.Errorf("%s: overwritten", form)
		}
	}
}
