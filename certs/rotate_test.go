package certs

import (
	"crypto/x509"
	"errors"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/util/keyutil"
)

// accepts reports whether a program that trusts the certificates in one file accepts the chain in the other.
func accepts(t *testing.T, trust, chain string, usage []x509.ExtKeyUsage, now time.Time) bool {
	t.Helper()
	opts := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), KeyUsages: usage, CurrentTime: now}
	if !opts.Roots.AppendCertsFromPEM([]byte(trust)) {
		t.Fatal("nothing to trust")
	}
	certs, err := parseCerts("", []byte(chain))
	fatal(t, err)
	for _, c := range certs[1:] {
		opts.Intermediates.AddCert(c)
	}
	_, err = certs[0].Verify(opts)
	return err == nil
}

// Authorities are replaced with a power cut after every step. At any moment, programs that know the old or the new files work with a
// server that has the old or the new ones. After the second stage, the old ones are refused.
func TestReplaceAuthorities(t *testing.T) {
	for n := 0; ; n++ {
		b := newTestbed(t)
		b.ensure(t)
		old := b.files(t)
		stage := func(what string, run func(*Store) ([]Name, error)) (cut bool) {
			t.Helper()
			b.ensure(t)
			cfg := b.Config
			fault, _ := cutAfter(n)
			store, _, err := Ensure(cfg)
			fatal(t, err)
			store.files.Fault = fault
			if _, err = run(store); err != nil && !errors.Is(err, errPowerCut) {
				t.Fatalf("%s after step %d: %v", what, n, err)
			}
			return err != nil
		}
		check := func(what string, oldWorks bool) {
			t.Helper()
			b.ensure(t)
			b.verify(t, b.now)
			now := b.files(t)
			for _, e := range table {
				if e.kind != KindLeaf || e.etcd {
					continue
				}
				leaf, ca := string(e.name)+".crt", string(e.signer)+".crt"
				for _, c := range []struct {
					name        string
					trust, leaf string
					want        bool
				}{
					{"new files", now[ca], now[leaf], true},
					{"only the old authority known", old[ca], now[leaf], oldWorks},
					{"an old certificate", now[ca], old[leaf], oldWorks},
				} {
					if got := accepts(t, c.trust, c.leaf, e.usage, b.now); got != c.want {
						t.Errorf("%s, cut after step %d: %s, %s: accepted: %v, want %v", what, n, e.name, c.name, got, c.want)
					}
				}
			}
		}
		replace := func(s *Store) ([]Name, error) { return s.Replace(false) }
		drop := func(s *Store) ([]Name, error) { return s.DropFormer(false) }
		cut := stage("replace", replace)
		check("between", true)
		s, _ := b.ensure(t)
		if _, err := s.Replace(false); err != nil {
			t.Fatal(err)
		}
		check("replaced", true)
		for _, name := range []Name{ServerCA, ClientCA, FrontProxyCA} {
			if b.files(t)[string(name)+".key"] == old[string(name)+".key"] {
				t.Errorf("cut after step %d: %s has its old key", n, name)
			}
		}
		s, _ = b.ensure(t)
		if again, err := s.Replace(false); err != nil || len(again) > 0 {
			t.Errorf("cut after step %d: replaced again: %v, %v", n, again, err)
		}
		cut = stage("drop", drop) || cut
		s, _ = b.ensure(t)
		if _, err := s.DropFormer(false); err != nil {
			t.Fatal(err)
		}
		check("dropped", false)
		s, _ = b.ensure(t)
		if more, err := s.Replace(false); err != nil || len(more) != 3 {
			t.Errorf("cut after step %d: the next replacement: %v, %v", n, more, err)
		}
		if t.Failed() {
			return
		}
		if !cut {
			if n < 20 {
				t.Fatalf("no power cut after %d steps", n)
			}
			return
		}
	}
}

// Between the stages, both service account keys verify, and the new one signs.
func TestReplaceServiceAccountKey(t *testing.T) {
	b := newTestbed(t)
	s, _ := b.ensure(t)
	fingerprint := func() string {
		t.Helper()
		shared, err := ReadShared(b.Dir)
		fatal(t, err)
		all, err := shared.Fingerprints()
		fatal(t, err)
		return all[ServiceAccount]
	}
	before := fingerprint()
	check := func(keys int, old bool) {
		t.Helper()
		b.ensure(t)
		public, err := keyutil.PublicKeysFromFile(s.KeyFile(ServiceAccount))
		if err != nil || len(public) != keys {
			t.Fatalf("%d keys verify, want %d: %v", len(public), keys, err)
		}
		sums := []string{}
		for _, key := range public {
			sum, _ := Fingerprint(key)
			sums = append(sums, sum)
		}
		if sums[0] != fingerprint() || slices.Contains(sums, before) != old {
			t.Errorf("got %v, want %s first; the old one: %v", sums, fingerprint(), old)
		}
		shared, err := ReadShared(b.Dir)
		if err != nil || shared.Trusted(ServiceAccount, before) != old || !shared.Trusted(ServiceAccount, fingerprint()) {
			t.Errorf("the old key is trusted: %v, want %v (%v)", !old, old, err)
		}
	}
	if names, err := s.Replace(true); err != nil || !slices.Equal(names, []Name{ServiceAccount}) || fingerprint() == before {
		t.Fatal(names, err)
	}
	check(2, true)
	if again, err := s.Replace(true); err != nil || len(again) > 0 {
		t.Errorf("replaced again: %v, %v", again, err)
	}
	if _, err := s.DropFormer(true); err != nil {
		t.Fatal(err)
	}
	check(1, false)
}

// What a user has put there is the user's to replace, and nothing is replaced then.
func TestReplaceLeavesUsersAuthorities(t *testing.T) {
	b := newTestbed(t)
	user := newUserCA(t, "theirs", ecKey(t), nil, today.AddDate(20, 0, 0))
	b.put(t, "client-ca.crt", encodeCerts(certsOf(user)))
	b.put(t, "client-ca.key", keyPEM(t, user.key, "PRIVATE KEY"))
	s, _ := b.ensure(t)
	before := b.files(t)
	if _, err := s.Replace(false); err == nil {
		t.Error("no error")
	}
	if diff := changed(before, b.files(t)); len(diff) > 0 {
		t.Errorf("changed: %v", diff)
	}
}
