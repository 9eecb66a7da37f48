package server_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/nodes/tunnels"
	"github.com/karve-k8s/karve/server"
)

// sshServer forwards connections to a kubelet, and counts them.
func sshServer(t *testing.T, at, kubelet string) (port int, forwarded *atomic.Int64) {
	t.Helper()
	host, err := tunnelsKey(t)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(at, "0"))
	if err != nil {
		t.Skipf("%s is not an address of this machine: %v", at, err)
	}
	forwarded = &atomic.Int64{}
	var serving sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	serve := func(conn net.Conn) {
		defer conn.Close()
		config := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, nil }}
		config.AddHostKey(host)
		_, channels, requests, err := ssh.NewServerConn(conn, config)
		if err != nil {
			return
		}
		go ssh.DiscardRequests(requests)
		for offered := range channels {
			forwarded.Add(1)
			target, err := net.Dial("tcp", kubelet)
			if err != nil {
				_ = offered.Reject(ssh.ConnectionFailed, err.Error())
				continue
			}
			channel, requests, err := offered.Accept()
			if err != nil {
				target.Close()
				continue
			}
			go ssh.DiscardRequests(requests)
			serving.Go(func() { _, _ = io.Copy(channel, target); channel.Close() })
			serving.Go(func() { _, _ = io.Copy(target, channel); target.Close() })
		}
	}
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, conn)
			mu.Unlock()
			serving.Go(func() { serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, conn := range open {
			conn.Close()
		}
		mu.Unlock()
		serving.Wait()
	})
	return l.Addr().(*net.TCPAddr).Port, forwarded
}

func tunnelsKey(t *testing.T) (ssh.Signer, error) {
	path := filepath.Join(t.TempDir(), "key")
	if err := tunnels.GenerateKey(path, "test"); err != nil {
		return nil, err
	}
	return tunnels.ReadKey(path)
}

// TestNodesThroughSSH reads a log of a kubelet that is reached through SSH alone. scripts/nodes has
// the rest, with real nodes and their SSH servers.
func TestNodesThroughSSH(t *testing.T) {
	var clients atomic.Int64 // requests with the API server's certificate
	kubelet := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) > 0 && strings.HasPrefix(r.TLS.PeerCertificates[0].Subject.CommonName, "kube-apiserver") {
			clients.Add(1)
		}
		fmt.Fprintln(w, "through SSH:", r.URL.Path)
	}))
	kubelet.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	kubelet.StartTLS()
	defer kubelet.Close()
	const address = "127.7.0.2" // its port 10250 is not open
	port, forwarded := sshServer(t, address, kubelet.Listener.Addr().String())
	c := start(t, func(c *server.Config) {
		c.SSHUser, c.SSHPort = "karve", port
		c.NoControllers, c.DisableScheduler = true, true
		c.APIServerArgs = append(c.APIServerArgs, "disable-admission-plugins=ServiceAccount")
	})
	ctx := t.Context()
	node, err := c.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n1"}, {Type: corev1.NodeInternalIP, Address: address}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	if _, err := c.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
	if _, err := c.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	asked := control.New(c.dir)
	defer asked.Close()
	eventually.Nil(t, "the tunnel is healthy", func() error {
		all, err := asked.Tunnels(ctx)
		if err != nil {
			return err
		}
		if len(all) != 1 || all[0].Node != "n1" || all[0].State != "healthy" {
			return fmt.Errorf("tunnels are %+v", all)
		}
		return nil
	})
	text, err := c.CoreV1().Pods("default").GetLogs("p", &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil || !strings.Contains(string(text), "through SSH: /containerLogs/default/p/main") {
		t.Errorf("the log is %q, %v", text, err)
	}
	if forwarded.Load() < 2 || clients.Load() < 2 {
		t.Errorf("%d connections were forwarded, and %d requests had a certificate, want a health check and a log of each", forwarded.Load(), clients.Load())
	}
	signer, err := tunnels.ReadKey(tunnels.KeyPath(c.dir))
	if err != nil {
		t.Fatal(err)
	}
	eventually.Nil(t, "the key is offered", func() error {
		offered, err := c.CoreV1().ConfigMaps("kube-public").Get(ctx, "karve-ssh", metav1.GetOptions{})
		if err != nil {
			return err
		}
		key, _, options, _, err := ssh.ParseAuthorizedKey([]byte(offered.Data["authorized_keys"]))
		if err != nil {
			return err
		}
		if offered.Data["user"] != "karve" || ssh.FingerprintSHA256(key) != ssh.FingerprintSHA256(signer.PublicKey()) || len(options) != 2 {
			return errors.New(fmt.Sprint(offered.Data))
		}
		return nil
	})
	metrics, err := c.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil || !strings.Contains(string(metrics), `apiserver_ssh_tunnel_healthy{node="n1"} 1`) {
		t.Errorf("/metrics lacks the tunnel (%v)", err)
	}
}
