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

	"k8s.io/client-go/tools/clientcmd"
)

func TestIssueUser(t *testing.T) {
	b := newTestbed(t)
	b.ensure(t)
	jane := User{Name: "jane/o'brien@example.com", Groups: []string{"dev", "ops"}, Life: 8 * time.Hour}
	got, err := IssueUser(b.Dir, jane, b.now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tls.X509KeyPair(got.CertPEM, got.KeyPEM); err != nil {
		t.Error(err)
	}
	cert, err := parseCerts("", got.CertPEM)
	if err != nil {
		t.Fatal(err)
	}
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
		if err != nil {
			t.Fatal(err)
		}
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
	if err := os.Remove(filepath.Join(b.Dir, "client-ca.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := IssueUser(b.Dir, User{Name: "jane", Life: time.Hour}, b.now); err == nil || !strings.Contains(err.Error(), "client-ca.key") {
		t.Errorf("got %v, want an error that names client-ca.key", err)
	}
	if _, err := os.Stat(filepath.Join(b.Dir, "users")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v: want nothing written", err)
	}
}

func TestUsersKubeconfig(t *testing.T) {
	b := newTestbed(t)
	s, _ := b.ensure(t)
	admin := filepath.Join(t.TempDir(), "admin.kubeconfig")
	k := s.Kubeconfig(Admin, "https://127.0.0.1:6443")
	k.Advertised = "https://karve.example"
	if err := WriteKubeconfig(admin, k); err != nil {
		t.Fatal(err)
	}
	jane, err := IssueUser(b.Dir, User{Name: "jane", Life: time.Hour}, b.now)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jane.Kubeconfig([]byte(read(t, admin)))
	if err != nil {
		t.Fatal(err)
	}
	for context, server := range map[string]string{"karve-jane": k.Server, "karve-advertised-jane": k.Advertised} {
		config, err := clientcmd.Load(text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := clientcmd.NewNonInteractiveClientConfig(*config, context, nil, nil).ClientConfig()
		if err != nil || got.Host != server || !bytes.Equal(got.CertData, jane.CertPEM) || !bytes.Equal(got.KeyData, jane.KeyPEM) {
			t.Errorf("%s: got %v, %v; want jane at %s", context, got, err, server)
		}
	}
	if bytes.Contains(text, []byte("kubernetes-admin")) || len(mustLoad(t, admin).AuthInfos) != 1 {
		t.Error("the administrator is in it")
	}
	merged := filepath.Join(t.TempDir(), "config")
	if _, err := MergeKubeconfig(t.Context(), merged, text, MergeOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := mustLoad(t, merged); len(got.AuthInfos) != 1 || !bytes.Equal(got.AuthInfos["karve-jane"].ClientKeyData, jane.KeyPEM) {
		t.Errorf("got %v, want jane alone", got.AuthInfos)
	}
}
