package server_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server"
)

// servingSerial returns the serial number of the certificate that a new connection gets.
func (c *cluster) servingSerial(t *testing.T) string {
	t.Helper()
	u, err := url.Parse(c.URL)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := tlsTrust(c)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", u.Host, &tls.Config{RootCAs: trust, ServerName: "kubernetes"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

func tlsTrust(c *cluster) (*x509.CertPool, error) {
	ca, err := os.ReadFile(filepath.Join(c.dir, "certs", "server-ca.crt"))
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		err = errors.Join(err, errors.New("no CA in server-ca.crt"))
	}
	return pool, err
}

func TestRenewalDropsNoConnection(t *testing.T) {
	c := shared(t)
	ctx := t.Context()
	ns := c.namespace(t)
	maps := c.CoreV1().ConfigMaps(ns)

	// The test has two connections of its own: one carries a watch, and the test knows the
	// other one by its address.
	config := *c.admin
	config.Dial = (&net.Dialer{}).DialContext // never shared
	client := clientFor(t, &config)
	requests := httpClient(t, &config)
	watching, err := client.CoreV1().ConfigMaps(ns).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	connection := func() (local string, reused bool) {
		trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { local, reused = i.Conn.LocalAddr().String(), i.Reused }}
		r, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodGet, c.URL+"/version", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := requests.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.ProtoMajor != 2 {
			t.Errorf("got HTTP/%d, want 2", answer.ProtoMajor)
		}
		return local, reused
	}
	before, _ := connection()
	old := c.servingSerial(t)

	// This is what `karve certs renew` does in another process.
	store, _, err := certs.Ensure(certs.Config{Dir: filepath.Join(c.dir, "certs"), ServiceIPs: []net.IP{net.IPv4(10, 96, 0, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := store.ForceRenew(certs.Serving, certs.Admin, certs.ControllerManager, certs.Scheduler); err != nil {
		t.Fatal(err)
	}
	eventually.Nil(t, "new connections get the new certificate", func() error {
		if c.servingSerial(t) == old {
			return errors.New("still the old one")
		}
		return nil
	})
	if after, reused := connection(); after != before || !reused {
		t.Errorf("the connection: got one from %s, reused %v; want the one from %s, reused", after, reused, before)
	}
	create(t, maps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "after-renewal"}})
	if err := sees(ctx, watching, "after-renewal"); err != nil {
		t.Errorf("the watch that was opened before: %v", err)
	}
}

// sees reads a watch until it has an event for the object.
func sees(ctx context.Context, w watch.Interface, name string) error {
	for {
		select {
		case e, open := <-w.ResultChan():
			if !open {
				return errors.New("it was closed")
			}
			if m, ok := e.Object.(metav1.Object); ok && m.GetName() == name {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(patience):
			return fmt.Errorf("nothing of %s in %v", name, patience)
		}
	}
}

// The server uses a user's own authorities as they are, including RSA ones.
func TestUserSuppliedAuthorities(t *testing.T) {
	files := map[string][]byte{}
	for _, name := range []string{"server-ca", "client-ca"} {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "the user's " + name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(5, 0, 0),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		files[name+".crt"] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		files[name+".key"] = pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	}
	c := start(t, func(config *server.Config) {
		dir := filepath.Join(config.DataDir, "certs")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, content := range files {
			if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
	ns := c.namespace(t) // through the secure listener, so both are in use
	for name, want := range files {
		if got := c.readFile(t, "certs/"+name); string(got) != string(want) {
			t.Errorf("%s was written to", name)
		}
	}
	key := requestCertificate(t, c, ns, "kubernetes.io/kube-apiserver-client", pkix.Name{CommonName: "olaf"})
	approve(t, c, ns)
	if got, _ := whoami(t, clientFor(t, c.with(c.issued(t, ns), key))); got != "olaf" {
		t.Errorf("the user of a certificate signed with the user's authority: got %s, want olaf", got)
	}
}
