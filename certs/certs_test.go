package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var today = time.Date(2026, time.November, 21, 12, 0, 0, 0, time.UTC)

// testbed is a directory, a clock and a set of interface addresses.
type testbed struct {
	Config
	now   time.Time
	addrs []string
}

func newTestbed(t testing.TB) *testbed {
	b := &testbed{now: today, addrs: []string{"192.168.1.5/24"}}
	b.Config = Config{
		Dir:        filepath.Join(t.TempDir(), "data", "certs"),
		Hostname:   "board",
		ServiceIPs: []net.IP{net.ParseIP("10.43.0.1")},
		NoSync:     true,
		Now:        func() time.Time { return b.now },
		InterfaceAddrs: func() ([]net.Addr, error) {
			var out []net.Addr
			for _, a := range b.addrs {
				ip, n, err := net.ParseCIDR(a)
				if err != nil {
					return nil, err
				}
				out = append(out, &net.IPNet{IP: ip, Mask: n.Mask})
			}
			return out, nil
		},
	}
	return b
}

func (b *testbed) ensure(t testing.TB) (*Store, []Note) {
	t.Helper()
	s, notes, err := Ensure(b.Config)
	if err != nil {
		t.Fatalf("Ensure: %v", err)
	}
	return s, notes
}

// files returns what is in the directory, by name.
func (b *testbed) files(t testing.TB) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(b.Dir)
	fatal(t, err)
	m := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(b.Dir, e.Name()))
		fatal(t, err)
		m[e.Name()] = string(data)
	}
	return m
}

// put writes a file as a user would.
func (b *testbed) put(t testing.TB, name string, data []byte) {
	t.Helper()
	fatal(t, os.MkdirAll(b.Dir, 0o700))
	fatal(t, os.WriteFile(filepath.Join(b.Dir, name), data, 0o600))
}

func (b *testbed) remove(t testing.TB, names ...string) {
	t.Helper()
	for _, n := range names {
		fatal(t, os.Remove(filepath.Join(b.Dir, n)))
	}
}

func (b *testbed) cert(t testing.TB, n Name) *x509.Certificate {
	t.Helper()
	e, _ := lookup(n)
	p, err := loadPair(b.Dir, e)
	fatal(t, err)
	if p.main == nil {
		t.Fatalf("%s: no certificate", n)
	}
	return p.main
}

// verify checks that, at each of the given times, a client that trusts only the roots of
// its CA file accepts every leaf.
func (b *testbed) verify(t testing.TB, times ...time.Time) {
	t.Helper()
	for _, e := range table {
		if !e.wanted(b.Dir, b.Etcd) {
			continue
		}
		p, err := loadPair(b.Dir, e)
		fatal(t, err)
		if e.kind == KindKey {
			if p.key == nil {
				t.Errorf("%s: no key", e.name)
			}
			continue
		}
		if e.kind == KindLeaf {
			if !p.matches() {
				t.Errorf("%s: key and certificate do not match", e.name)
				continue
			}
			caEntry, _ := lookup(e.signer)
			ca, err := loadPair(b.Dir, caEntry)
			fatal(t, err)
			for _, at := range times {
				opts := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), KeyUsages: e.usage, CurrentTime: at}
				for _, c := range ca.certs {
					if bytes.Equal(c.RawIssuer, c.RawSubject) {
						opts.Roots.AddCert(c)
					}
				}
				for _, c := range p.certs[1:] {
					opts.Intermediates.AddCert(c)
				}
				if _, err := p.main.Verify(opts); err != nil {
					t.Errorf("%s at %v: %v", e.name, at, err)
				}
			}
			if got := p.main.Subject.CommonName; got != e.cn {
				t.Errorf("%s: CN %q, want %q", e.name, got, e.cn)
			}
		}
	}
}

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func texts(notes []Note) string {
	var lines []string
	for _, n := range notes {
		lines = append(lines, n.String())
	}
	return strings.Join(lines, "\n")
}

// changed returns the names of files that differ between two listings.
func changed(a, b map[string]string) []string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	var out []string
	for n := range all {
		if a[n] != b[n] {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// userCA is a CA that a user made with other tools.
type userCA struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func newUserCA(t testing.TB, cn string, key crypto.Signer, parent *userCA, end time.Time) userCA {
	t.Helper()
	tmpl := &x509.Certificate{
		Subject: pkix.Name{CommonName: cn}, NotBefore: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: end,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	signer := &userCA{tmpl, key}
	if parent != nil {
		signer = parent
	}
	return userCA{createCert(t, tmpl, signer.cert, key.Public(), signer.key), key}
}

func (ca userCA) leaf(t testing.TB, cn string, pub crypto.PublicKey, usage x509.ExtKeyUsage, end time.Time, names ...string) *x509.Certificate {
	t.Helper()
	return createCert(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: cn, Organization: []string{masters}}, NotBefore: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: end,
		ExtKeyUsage: []x509.ExtKeyUsage{usage}, KeyUsage: x509.KeyUsageDigitalSignature, DNSNames: names,
	}, ca.cert, pub, ca.key)
}

func createCert(t testing.TB, tmpl, parent *x509.Certificate, pub, key any) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, key)
	fatal(t, err)
	c, err := x509.ParseCertificate(der)
	fatal(t, err)
	return c
}

func ecKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal(t, err)
	return k
}

func rsaKey(t testing.TB) *rsa.PrivateKey {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	fatal(t, err)
	return k
}

func keyPEM(t testing.TB, key crypto.Signer, form string) []byte {
	t.Helper()
	var der []byte
	var err error
	switch form {
	case "EC PRIVATE KEY":
		der, err = x509.MarshalECPrivateKey(key.(*ecdsa.PrivateKey))
	case "RSA PRIVATE KEY":
		der = x509.MarshalPKCS1PrivateKey(key.(*rsa.PrivateKey))
	default:
		der, err = x509.MarshalPKCS8PrivateKey(key)
	}
	fatal(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: form, Bytes: der})
}

func TestEnsureMakesEverything(t *testing.T) {
	b := newTestbed(t)
	b.Etcd = true
	s, notes := b.ensure(t)
	if len(notes) != 0 {
		t.Errorf("notes of an ordinary first start: %v", texts(notes))
	}
	b.verify(t, time.Unix(0, 0), today, today.AddDate(0, 11, 0))

	var want []string
	for _, n := range Names() {
		if n != ServiceAccount {
			want = append(want, filepath.Base(s.CertFile(n)))
		}
		want = append(want, filepath.Base(s.KeyFile(n)))
	}
	slices.Sort(want)
	got := slices.Sorted(maps.Keys(b.files(t)))
	if !slices.Equal(got, want) {
		t.Errorf("files %v, want %v", got, want)
	}
	for _, n := range append(got, ".") {
		info, err := os.Stat(filepath.Join(b.Dir, n))
		fatal(t, err)
		want := os.FileMode(fileMode)
		if info.IsDir() {
			want = dirMode
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", n, info.Mode().Perm(), want)
		}
	}
	if info, _ := os.Stat(filepath.Dir(b.Dir)); info.Mode().Perm() != dirMode {
		t.Errorf("the data directory has mode %v", info.Mode().Perm())
	}
	if !strings.HasPrefix(b.files(t)["service-account.key"], "-----BEGIN EC PRIVATE KEY-----") {
		t.Error("the service account key is not in SEC 1 form")
	}
	for n, end := range map[Name]time.Time{ServerCA: today.Add(caLife), Admin: today.Add(leafLife)} {
		if got := b.cert(t, n).NotAfter; !got.Equal(end) {
			t.Errorf("%s ends %v, want %v", n, got, end)
		}
	}
	if o := b.cert(t, Admin).Subject.Organization; !slices.Equal(o, []string{masters}) {
		t.Errorf("admin has O=%v", o)
	}
	if o := b.cert(t, Scheduler).Subject.Organization; len(o) != 0 {
		t.Errorf("scheduler has O=%v", o)
	}
	if got, want := s.SignerFile(ClientCA), s.CertFile(ClientCA); got != want {
		t.Errorf("SignerFile %s, want %s", got, want)
	}
	if got, want := s.NextDue(), dueAt(today, today.Add(leafLife)); !got.Equal(want) {
		t.Errorf("NextDue %v, want %v", got, want)
	}

	// A second start changes nothing.
	before := b.files(t)
	if _, notes := b.ensure(t); len(notes) != 0 {
		t.Errorf("notes of a second start: %v", texts(notes))
	}
	if diff := changed(before, b.files(t)); len(diff) != 0 {
		t.Errorf("a second start changed %v", diff)
	}
}
