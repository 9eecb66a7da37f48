package datadir

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/command/servers"
	"github.com/karve-k8s/karve/datastore/directory"
)

// advertised is the value of --server that stands for the address that the server advertises.
const advertised = "advertised"

// serverFor returns the URL that --server asks for, else that of the server's --advertise-url, or
// nothing. text is the admin's kubeconfig.
func serverFor(c *cli.Context, text []byte) (string, error) {
	wanted := c.String("server")
	if wanted == "" && c.IsSet("server") {
		return "", errors.New(`--server "": want a URL, HOST[:PORT], or ` + advertised)
	}
	dir := c.String("data-dir")
	port, users, err := serversOf(text)
	if err != nil && wanted != "" {
		return "", fmt.Errorf("%s: %w", filepath.Join(dir, servers.KubeconfigName), err)
	}
	switch {
	case (wanted == "" || wanted == advertised) && users != "":
		wanted = users
	case wanted == "":
		return "", nil
	case wanted == advertised:
		config, err := servers.Connect(dir, "")
		if err != nil {
			return "", fmt.Errorf("--server %s: %w", advertised, err)
		}
		config.Timeout = askTimeout
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return "", err
		}
		found, err := servers.ReadAdvertised(c.Context, client)
		if err != nil {
			return "", fmt.Errorf("--server %s: %w", advertised, err)
		}
		wanted = found.Address
	}
	server, err := parseServer(wanted, port)
	if err != nil {
		return "", err
	}
	if warning := uncovered(c.Context, dir, server); warning != "" {
		fmt.Fprintln(c.App.ErrWriter, "karve: warning: "+warning)
	}
	return server.String(), nil
}

// parseServer parses a URL, or HOST[:PORT]. Without a port it is port, that of the server.
func parseServer(text, port string) (*url.URL, error) {
	wrong := func(why string) error {
		return fmt.Errorf("--server %q: %s; want a URL such as https://board.example:6443, or HOST[:PORT]", text, why)
	}
	whole := text
	if address, err := netip.ParseAddr(text); err == nil && address.Is6() { // without brackets it would end in a port
		whole = "[" + text + "]"
	}
	isURL := strings.Contains(text, "://")
	if !isURL {
		whole = "https://" + whole
	}
	u, err := url.Parse(whole)
	switch {
	case err != nil:
		return nil, wrong("it cannot be parsed")
	case u.Scheme != "https":
		return nil, wrong("the administrator's credentials are for https only")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, wrong("it has more than a host, a port and a path")
	case !isURL && u.Path != "":
		return nil, wrong("it has a path")
	case strings.HasSuffix(u.Host, ":"):
		return nil, wrong("the port is missing")
	}
	if _, _, err := certs.ParseSAN(u.Hostname()); err != nil {
		return nil, wrong("the host is neither a name nor an address")
	}
	if u.Port() == "" && !isURL {
		u.Host = net.JoinHostPort(u.Hostname(), port)
	} else if p := u.Port(); p != "" {
		if _, err := netip.ParseAddrPort("0.0.0.0:" + p); err != nil || p == "0" {
			return nil, wrong("the port is not a number from 1 to 65535")
		}
	}
	return u, nil
}

// serversOf returns the port of the secure listener in the admin's kubeconfig, and the URL for users if it
// has one.
func serversOf(text []byte) (port, users string, err error) {
	config, err := clientcmd.Load(text)
	if err != nil {
		return "", "", errors.New("it is not a kubeconfig")
	}
	server, users := certs.KubeconfigServers(config)
	if u, err := url.Parse(server); err == nil && u.Port() != "" {
		return u.Port(), users, nil
	}
	return "", "", errors.New("it names no server with a port")
}

// withServer is a kubeconfig with another server, and no other URL for users.
func withServer(text []byte, server string) ([]byte, error) {
	config, err := clientcmd.Load(text)
	if err != nil {
		return nil, errors.New("it is not a kubeconfig")
	}
	for name, cluster := range config.Clusters {
		if strings.HasSuffix(name, certs.AdvertisedSuffix) {
			delete(config.Clusters, name)
			delete(config.Contexts, name)
		}
		certs.SetServer(cluster, server)
	}
	return clientcmd.Write(*config)
}

// uncovered says that the serving certificate is not valid for the host of server, or why that is not
// known. It is empty if the certificate is.
func uncovered(ctx context.Context, dir string, server *url.URL) string {
	host := server.Hostname()
	certificate, err := servingCertificate(ctx, dir, host)
	if err != nil {
		return fmt.Sprintf("whether the server's certificate is valid for %s is unknown: %v", host, err)
	}
	if certificate.VerifyHostname(host) == nil {
		return ""
	}
	if mine, err := net.InterfaceAddrs(); err == nil && certificate.Subject.CommonName == "kube-apiserver" {
		// Karve adds an address of this machine when a client connects to it.
		ip := net.ParseIP(host)
		if ip != nil && slices.ContainsFunc(mine, func(a net.Addr) bool { n, ok := a.(*net.IPNet); return ok && n.IP.Equal(ip) }) {
			return ""
		}
	}
	return fmt.Sprintf("the server's certificate is not valid for %s: add --tls-san %[1]s to the server, or clients will refuse it", host)
}

// servingCertificate is the certificate that the server shows to clients that ask for host. If no server
// runs, it is the one in the data directory.
func servingCertificate(ctx context.Context, dir, host string) (*x509.Certificate, error) {
	if _, held, err := directory.Holder(dir); err == nil && held {
		if config, err := servers.Kubeconfig(dir); err == nil {
			return shown(ctx, config, host)
		}
	}
	all, err := certutil.CertsFromFile(filepath.Join(dir, "certs", string(certs.Serving)+".crt"))
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// shown asks a running server. It sends nothing, so it does not have to trust the answer.
func shown(ctx context.Context, config *rest.Config, host string) (*x509.Certificate, error) {
	u, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{ServerName: host, InsecureSkipVerify: true}}
	connection, err := dialer.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	return connection.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}
