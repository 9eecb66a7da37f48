package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/karve-k8s/karve/certs"
)

// A peer is a control plane that can be started: Karve, or what it is compared with.
type peer struct {
	title string
	name  string // in records
	// version is in records, too.
	version string
	// controllers says that it has controllers and a scheduler.
	controllers bool
	binaries    []string      // in the order of the processes
	group       int64         // MiB of a control group for them; 0: none
	kwok        *kwok         // simulates nodes; nil: Karve does
	database    *userDatabase // of Karve; nil: the built-in datastore
	// launch starts the processes on a data directory, which may have the state of an earlier
	// start, and adds them to c. It does not wait until they are ready.
	launch func(ctx context.Context, dir string, c *cluster) error
}

// freePorts finds ports that are free at the moment. With port 0, kube-apiserver and etcd would
// not report which port they got.
func freePorts(n int) ([]string, error) {
	ports := make([]string, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close()
		ports[i] = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// karve is the whole control plane on loopback, with its defaults except for options and the database, which
// may be nil.
func karve(title, binary string, database *userDatabase, options ...string) *peer {
	return &peer{title: title, name: "karve", version: karveVersion(binary), controllers: true, binaries: []string{binary}, database: database,
		launch: func(_ context.Context, dir string, c *cluster) error {
			ports, err := freePorts(1)
			if err != nil {
				return err
			}
			c.host, c.certs = net.JoinHostPort("127.0.0.1", ports[0]), filepath.Join(dir, "certs")
			c.began = time.Now()
			args := append([]string{"server", "--data-dir", dir, "--bind-address", "127.0.0.1", "--secure-port", ports[0], "--insecure-port", "-1"}, options...)
			own, err := database.options(dir)
			if err != nil {
				return err
			}
			args = append(append(args, own...), c.options...)
			return c.start(dir, "karve", binary, args...)
		}}
}

// karveVersion is what `karve version` prints, on one line; empty if it fails, as the
// start of such a binary will, with a better error.
func karveVersion(binary string) string {
	text, err := exec.Command(binary, "version").Output()
	if err != nil {
		return ""
	}
	return strings.Join(strings.Fields(string(text)), " ")
}

// etcdAndKubeAPIServer is the test server of controller-runtime's envtest: no controllers, no
// scheduler, and etcd with its defaults, which include fsync. Two things are to its advantage:
// its keys and certificates are ECDSA and exist before the start, in pki, and kube-apiserver
// starts when etcd answers.
func etcdAndKubeAPIServer(etcd, kubeAPIServer, pki string) *peer {
	made := sync.OnceValue(func() error {
		_, _, err := certs.Ensure(certs.Config{Dir: pki, ServiceIPs: []net.IP{net.IPv4(10, 0, 0, 1)}, NoSync: true})
		return err
	})
	return &peer{title: "etcd + kube-apiserver", name: "etcd-kube-apiserver", version: kubernetesVersion, binaries: []string{etcd, kubeAPIServer},
		launch: func(ctx context.Context, dir string, c *cluster) error {
			if err := made(); err != nil {
				return err
			}
			ports, err := freePorts(3)
			if err != nil {
				return err
			}
			c.host, c.etcd, c.certs = net.JoinHostPort("127.0.0.1", ports[0]), "http://"+net.JoinHostPort("127.0.0.1", ports[1]), pki
			c.began = time.Now()
			if err := c.launchEtcd(etcd, dir, ports[2]); err != nil {
				return err
			}
			p := &prober{cluster: c, base: c.etcd, client: &http.Client{Timeout: time.Second, Transport: &http.Transport{}}}
			defer p.close()
			if err := p.await(ctx, "/health"); err != nil {
				return err
			}
			return c.launchKubeAPIServer(kubeAPIServer, dir, ports[0])
		}}
}

func (c *cluster) launchEtcd(binary, dir, peerPort string) error {
	members := "http://127.0.0.1:" + peerPort
	return c.start(dir, "etcd", binary, "--data-dir", filepath.Join(dir, "data"),
		"--listen-client-urls", c.etcd, "--advertise-client-urls", c.etcd,
		"--listen-peer-urls", members, "--initial-advertise-peer-urls", members, "--initial-cluster", "default="+members)
}

func (c *cluster) launchKubeAPIServer(binary, dir, port string) error {
	key := c.file(certs.ServiceAccount, ".key")
	return c.start(dir, "kube-apiserver", binary,
		"--etcd-servers", c.etcd,
		"--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--secure-port", port,
		"--endpoint-reconciler-type", "none", // loopback is no address for an endpoint
		"--tls-cert-file", c.file(certs.Serving, ".crt"), "--tls-private-key-file", c.file(certs.Serving, ".key"),
		"--client-ca-file", c.file(certs.ClientCA, ".crt"),
		"--service-account-issuer", "https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file", key, "--service-account-signing-key-file", key,
		"--service-cluster-ip-range", "10.0.0.0/24", "--authorization-mode", "RBAC",
		"--allow-privileged=true", "--disable-admission-plugins", "ServiceAccount",
		"--cert-dir", dir)
}

// sizes are the sizes of the peer's binaries, in bytes.
func (p *peer) sizes() (parts []float64, err error) {
	for _, name := range p.binaries {
		info, err := os.Stat(name)
		if err != nil {
			return nil, err
		}
		parts = append(parts, float64(info.Size()))
	}
	return parts, nil
}
