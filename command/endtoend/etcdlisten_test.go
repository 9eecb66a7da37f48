package endtoend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/certs"
)

var etcdLine = regexp.MustCompile(`serving the etcd API at (https?://[^ ,]+)`)

func (p *process) etcdURL() string {
	p.t.Helper()
	match := etcdLine.FindStringSubmatch(p.stderr.String())
	if match == nil {
		p.t.Fatal("the log does not say where the etcd API is")
	}
	return match[1]
}

// A server that listens for etcd's clients is another server's datastore.
func TestAServerIsTheDatastoreOfAnother(t *testing.T) {
	long(t)
	store := start(t, t.TempDir(), append(bare, "--etcd-listen=https://127.0.0.1:0")...)
	file := func(n certs.Name, ending string) string {
		return filepath.Join(store.dir, "certs", string(n)+ending)
	}
	endpoint := store.etcdURL()

	t.Run("other certificates are refused", func(t *testing.T) {
		// Until 1.2, TLS tells the client in the handshake.
		shake := func(own ...tls.Certificate) (*x509.Certificate, error) {
			authority, err := os.ReadFile(file(certs.EtcdCA, ".crt"))
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(authority)
			u, _ := url.Parse(endpoint)
			c, err := tls.Dial("tcp", u.Host, &tls.Config{RootCAs: roots, Certificates: own, MaxVersion: tls.VersionTLS12})
			if err != nil {
				return nil, err
			}
			defer c.Close()
			return c.ConnectionState().PeerCertificates[0], nil
		}
		pair := func(n certs.Name) tls.Certificate {
			c, err := tls.LoadX509KeyPair(file(n, ".crt"), file(n, ".key"))
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		before, err := shake(pair(certs.EtcdClient))
		if err != nil {
			t.Fatalf("the client's certificate: %v", err)
		}
		if _, err := shake(); err == nil {
			t.Error("a client without a certificate was let in")
		}
		for _, n := range []certs.Name{certs.Admin, certs.EtcdServer, certs.KubeletClient} {
			if _, err := shake(pair(n)); err == nil {
				t.Errorf("a client with the certificate of %s was let in", n)
			}
		}
		karve(t, "certs", "renew", "--data-dir", store.dir, "etcd-server")
		after, err := shake(pair(certs.EtcdClient))
		if err != nil || after.SerialNumber.Cmp(before.SerialNumber) == 0 {
			t.Errorf("after a renewal: %v, and the same certificate", err)
		}
	})

	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "certs"), os.DirFS(filepath.Join(store.dir, "certs"))); err != nil { // of one cluster
		t.Fatal(err)
	}
	other := start(t, dir, append(bare, "--datastore-endpoint="+endpoint, "--datastore-cafile="+file(certs.EtcdCA, ".crt"),
		"--datastore-certfile="+file(certs.EtcdClient, ".crt"), "--datastore-keyfile="+file(certs.EtcdClient, ".key"))...)
	here, there := client(t, other.config()).CoreV1().ConfigMaps("default"), client(t, store.config()).CoreV1().ConfigMaps("default")
	watch, err := there.Watch(within(t, patience), metav1.ListOptions{FieldSelector: "metadata.name=seen"})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	if _, err := here.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "seen"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if event, open := <-watch.ResultChan(); !open || event.Type != "ADDED" {
		t.Errorf("the server with the datastore sees %v of what the other has made", event)
	}
	if _, err := os.Stat(filepath.Join(other.dir, "mvcc.db")); err == nil {
		t.Error("the other server has made a datastore of its own")
	}
}

// Without TLS, the listener is the insecure port's kind: for root and the
// server's user.
func TestEtcdAPIOnLoopback(t *testing.T) {
	long(t)
	p := start(t, t.TempDir(), append(bare, "--etcd-listen=http://127.0.0.1:0")...)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{p.etcdURL()}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if got, err := c.Get(ctx, "/registry/namespaces/default"); err != nil || got.Count != 1 {
		t.Errorf("get: %v, %v, want the namespace", got, err)
	}
	members, err := c.MemberList(ctx)
	if err != nil || fmt.Sprint(members.Members[0].ClientURLs) != "["+p.etcdURL()+"]" {
		t.Errorf("members: %v, %v, want %s", members, err, p.etcdURL())
	}
}
