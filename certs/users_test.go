package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestIssueUser(t *testing.T) {
	b := newTestbed(t)
	b.ensure(t)
	jane := User{Name: "jane/o'brien@example.com", Groups: []string{"dev", "ops"}, Life: 8 * time.Hour}
	got, err := IssueUser(b.Dir, jane, b.now)
	fatal(t, err)
	if _, err := tls.X509KeyPair(got.CertPEM, got.KeyPEM); err != nil {
		t.Error(err)
	}
	cert, err := parseCerts("", got.CertPEM)
	fatal(t, err)
	if name := cert[0].Subject; name.CommonName != jane.Name || !slices.Equal(name.Organization, jane.Groups) {
		t.Errorf("got the subject %v, want %v", name, jane)
	}
	if left := got.NotAfter.Sub(b.now); left > 8*time.Hour || left < 8*time.Hour-time.Minute {
		t.Errorf("it is valid for %v, want 8h", left)
	}
	authority := x509.NewCertPool()
	authority.AppendCertsFromPEM([]byte(read(t, filepath.Join(b.Dir, "client-ca.crt"))))
	if _, err := cert[0].Verify(x509.VerifyOptions{Roots: authority, CurrentTime: b.now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}

	if _, err := IssueUser(b.Dir, User{Name: "bob", Life: 24 * time.Hour}, b.now); err != nil {
		t.Fatal(err)
	}
	listed := func(now time.Time) (names []string) {
		infos, err := Users(b.Dir, now)
		fatal(t, err)
		for _, i := range infos {
			names = append(names, string(i.Name)+i.Problem)
			if data, _ := os.ReadFile(i.CertFile); bytes.Contains(data, []byte("PRIVATE")) {
				t.Errorf("%s has a key", i.CertFile)
			}
		}
		return names
	}
	if got, want := listed(b.now), []string{"user/" + jane.Name, "user/bob"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	// Only those that have expired go.
	if _, err := IssueUser(b.Dir, User{Name: "eve", Life: 48 * time.Hour}, b.now.Add(9*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if got, want := listed(b.now), []string{"user/bob", "user/eve"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if late, err := IssueUser(b.Dir, User{Name: "old", Life: 2 * caLife}, b.now); err != nil || late.NotAfter.After(b.now.Add(caLife)) {
		t.Errorf("got %v, %v: want that a user's certificate ends with its authority", late.NotAfter, err)
	}
}

func TestIssueUserRefuses(t *testing.T) {
	b := newTestbed(t)
	b.ensure(t)
	for want, u := range map[string]User{
		`--user ""`:          {Life: time.Hour},
		"components":         {Name: "system:admin", Life: time.Hour},
		"1 to 64 characters": {Name: strings.Repeat("x", 65), Life: time.Hour},
		`--group ""`:         {Name: "jane", Groups: []string{""}, Life: time.Hour},
		"repeat --group":     {Name: "jane", Groups: []string{"a,b"}, Life: time.Hour},
		"--ttl 0s":           {Name: "jane"},
		"--ttl -1h0m0s":      {Name: "jane", Life: -time.Hour},
	} {
		if _, err := IssueUser(b.Dir, u, b.now); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want an error with %s", u, err, want)
		}
	}
	fatal(t, os.Remove(filepath.Join(b.Dir, "client-ca.key")))
	if _, err := IssueUser(b.Dir, User{Name: "jane", Life: time.Hour}, b.now); err == nil || !strings.Contains(err.Error(), "client-ca.key") {
		t.Errorf("got %v, want an error that names client-ca.key", err)
	}
	if _, err := os.Stat(filepath.Join(b.Dir, "users")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v: want nothing written", err)
	}
}
