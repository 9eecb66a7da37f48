package server_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/server"
)

// shownTo returns the certificate that a client gets if it asks for name.
func (c *cluster) shownTo(t *testing.T, name string) *x509.Certificate {
	t.Helper()
	u, err := url.Parse(c.URL)
	fatal(t, err)
	// The test checks the certificate below, so the client does not verify it.
	conn, err := tls.Dial("tcp", u.Host, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	fatal(t, err)
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0]
}

// tlsTrust is the authority of the serving certificate.
func tlsTrust(c *cluster) (*x509.CertPool, error) {
	ca, err := os.ReadFile(filepath.Join(c.dir, "certs", "server-ca.crt"))
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		err = errors.Join(err, errors.New("no CA in server-ca.crt"))
	}
	return pool, err
}

// trustedFor checks that clients that trust the cluster's CA can reach the server under each
// name or address.
func trustedFor(t *testing.T, c *cluster, names ...string) {
	t.Helper()
	roots, err := tlsTrust(c)
	fatal(t, err)
	cert := c.shownTo(t, "localhost")
	for _, name := range names {
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Errorf("serving certificate: %v", err)
		}
	}
}

func TestInsecureListenerAndHTTP2CanBeDisabled(t *testing.T) {
	c := start(t, func(config *server.Config) { config.DisableInsecure, config.DisableHTTP2 = true, true })
	if c.InsecureURL != "" {
		t.Errorf("InsecureURL: got %s, want none", c.InsecureURL)
	}
	client := httpClient(t, c.admin)
	answer, err := client.Get(c.URL + "/version")
	fatal(t, err)
	answer.Body.Close()
	if answer.ProtoMajor != 1 {
		t.Errorf("with HTTP/2 disabled: got %s, want HTTP/1.1", answer.Proto)
	}
	_, port, err := net.SplitHostPort(strings.TrimPrefix(c.URL, "https://"))
	fatal(t, err)
	// The secure listener is the only listener of this process.
	if listeners := listening(t); len(listeners) != 1 || listeners[0] != port {
		t.Errorf("TCP ports that this process listens on: got %v, want %s only", listeners, port)
	}
}

// listening lists the TCP ports that this process listens on.
func listening(t *testing.T) []string {
	t.Helper()
	inodes := map[string]bool{}
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, "socket:[") {
			inodes[strings.Trim(to, "socket:[]")] = true
		}
	}
	if len(inodes) == 0 {
		t.Skip("there is no /proc to look the sockets up in")
	}
	var ports []string
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		content, err := os.ReadFile(table)
		fatal(t, err)
		for line := range strings.Lines(string(content)) {
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != "0A" || !inodes[f[9]] { // 0A: listening
				continue
			}
			_, hex, _ := strings.Cut(f[1], ":")
			port, err := strconv.ParseUint(hex, 16, 16)
			fatal(t, err)
			ports = append(ports, strconv.FormatUint(port, 10))
		}
	}
	return ports
}
