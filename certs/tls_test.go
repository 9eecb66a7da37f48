package certs

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func pool(t *testing.T, path string) *x509.CertPool {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(data) {
		t.Fatalf("no certificate in %s", path)
	}
	return p
}

func (s *Store) load(t *testing.T, n Name) tls.Certificate {
	t.Helper()
	c, err := tls.LoadX509KeyPair(s.CertFile(n), s.KeyFile(n))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestHandshake connects a server that has Serving and asks for client certificates of
// ClientCA with clients that have the other files.
func TestHandshake(t *testing.T) {
	b := newTestbed(t)
	middle := newUserCA(t, "middle", ecKey(t), nil, today.AddDate(20, 0, 0))
	for _, users := range []bool{false, true} {
		if users { // a chain for the server, Karve's for the clients
			root := newUserCA(t, "root", rsaKey(t), nil, today.AddDate(20, 0, 0))
			middle = newUserCA(t, "middle", ecKey(t), &root, today.AddDate(20, 0, 0))
			b.put(t, "server-ca.crt", encodeCerts(certsOf(middle, root)))
			b.put(t, "server-ca.key", keyPEM(t, middle.key, "PRIVATE KEY"))
		}
		s, _ := b.ensure(t)
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			subject := r.TLS.PeerCertificates[0].Subject
			fmt.Fprint(w, subject.CommonName, subject.Organization)
		}))
		now := func() time.Time { return b.now }
		srv.TLS = &tls.Config{Certificates: []tls.Certificate{s.load(t, Serving)}, ClientCAs: pool(t, s.CertFile(ClientCA)), ClientAuth: tls.RequireAndVerifyClientCert, Time: now}
		srv.Config.ErrorLog = log.New(io.Discard, "", 0)
		srv.StartTLS()
		for _, c := range []struct {
			who  Name
			want string
		}{
			{Admin, "kubernetes-admin[system:masters]"},
			{Scheduler, "system:kube-scheduler[]"},
			{ControllerManager, "system:kube-controller-manager[]"},
			{KubeletClient, "kube-apiserver-kubelet-client[]"},
			{FrontProxyClient, ""},
			{Serving, ""},
		} {
			for _, name := range []string{"127.0.0.1", "kubernetes.default.svc", "board", "elsewhere"} {
				tr := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
					Certificates: []tls.Certificate{s.load(t, c.who)}, RootCAs: pool(t, s.CertFile(ServerCA)), ServerName: name, Time: now}}
				got := ""
				resp, err := (&http.Client{Transport: tr}).Get(srv.URL)
				if err == nil {
					body, _ := io.ReadAll(resp.Body)
					resp.Body.Close()
					got = string(body)
				}
				want := c.want
				if name == "elsewhere" {
					want = ""
				}
				if got != want || (err == nil) != (want != "") {
					t.Errorf("%s to %s: %q, %v; want %q", c.who, name, got, err, want)
				}
			}
		}
		srv.Close()
	}
}

func TestList(t *testing.T) {
	b := newTestbed(t)
	b.Etcd = true
	if _, err := List(b.Dir, today); err == nil || !strings.Contains(err.Error(), b.Dir) {
		t.Errorf("no directory: %v", err)
	}
	ca := newUserCA(t, "theirs", rsaKey(t), nil, today.AddDate(0, 0, 10))
	b.put(t, "client-ca.crt", encodeCerts(certsOf(ca)))
	b.put(t, "client-ca.key", keyPEM(t, ca.key, "PRIVATE KEY"))
	s, _ := b.ensure(t)
	b.remove(t, "scheduler.crt", "admin.key")
	before := b.files(t)
	infos, err := List(b.Dir, today.Add(12*time.Hour))
	if err != nil || len(infos) != len(Names()) {
		t.Fatal(infos, err)
	}
	if diff := changed(before, b.files(t)); len(diff) != 0 {
		t.Errorf("List changed %v", diff)
	}
	by := map[Name]Info{}
	for _, i := range infos {
		by[i.Name] = i
	}
	srv := by[Serving]
	if srv.Kind != KindLeaf || srv.Subject != "CN=kube-apiserver" || srv.DaysLeft != 364 || srv.KeyType != "ECDSA P-256" || srv.UserSupplied || srv.Problem != "" ||
		!srv.NotAfter.Equal(today.Add(leafLife)) || !srv.Due.Equal(s.NextDue()) || srv.CertFile != s.CertFile(Serving) || srv.KeyFile != s.KeyFile(Serving) ||
		!strings.HasPrefix(srv.Issuer, "CN=karve-server-ca@") || !slices.Contains(srv.SANs, "192.168.1.5") || !slices.Contains(srv.SANs, "board") {
		t.Errorf("serving: %+v", srv)
	}
	if c := by[ClientCA]; c.Kind != KindCA || !c.UserSupplied || c.KeyType != "RSA 2048" || c.DaysLeft != 9 || c.Subject != "CN=theirs" {
		t.Errorf("client-ca: %+v", c)
	}
	if a := by[ServiceAccount]; a.Kind != KindKey || a.CertFile != "" || a.KeyFile == "" || a.KeyType != "ECDSA P-256" || a.Problem != "" {
		t.Errorf("service-account: %+v", a)
	}
	if a := by[Admin]; !strings.HasSuffix(a.Problem, "admin.key is missing") || a.KeyFile != "" || a.Subject == "" {
		t.Errorf("admin: %+v", a)
	}
	if a := by[Scheduler]; !strings.HasSuffix(a.Problem, "scheduler.crt is missing") || a.CertFile != "" {
		t.Errorf("scheduler: %+v", a)
	}
}

func TestParseName(t *testing.T) {
	for _, n := range Names() {
		if got, err := ParseName(string(n)); got != n || err != nil {
			t.Errorf("ParseName(%q) = %q, %v", n, got, err)
		}
	}
	if _, err := ParseName("x"); err == nil || !strings.Contains(err.Error(), "front-proxy-client") {
		t.Errorf("ParseName of an unknown name: %v", err)
	}
}
