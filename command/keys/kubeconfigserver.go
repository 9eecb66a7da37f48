package keys

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/command/status/servers"
)

// serverFor returns the URL that --server asks for, else that of the server's --advertise-url, or
// nothing. text is the admin's kubeconfig.
func serverFor(c *cli.Context, text []byte) (string, error) {
	wanted := c.String("server")
	if wanted == "" && c.IsSet("server") {
		return "", errors.New(`--server "": want a URL or HOST[:PORT]`)
	} else if wanted == "advertised" { // of earlier releases
		return "", errors.New("--server advertised: start the server with --advertise-url, or name its HOST")
	}
	port, users, err := serversOf(text)
	if wanted = cmp.Or(wanted, users); wanted == "" {
		return "", nil
	} else if err != nil {
		return "", fmt.Errorf("%s: %w", filepath.Join(c.String("data-dir"), servers.KubeconfigName), err)
	}
	server, err := parseServer(wanted, port)
	if err != nil {
		return "", err
	}
	return server.String(), nil
}

// parseServer parses an https URL, or HOST[:PORT]. Without a port it is port, that of the server.
func parseServer(text, port string) (*url.URL, error) {
	whole := text
	if address, err := netip.ParseAddr(text); err == nil && address.Is6() { // without brackets it would end in a port
		whole = "[" + text + "]"
	}
	isURL := strings.Contains(text, "://")
	if !isURL {
		whole = "https://" + whole
	}
	u, err := url.Parse(whole)
	if err == nil && u.Port() != "" {
		_, err = netip.ParseAddrPort("0.0.0.0:" + u.Port())
	}
	if err == nil {
		_, _, err = certs.ParseSAN(u.Hostname())
	}
	if err != nil || u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || !isURL && u.Path != "" || strings.HasSuffix(u.Host, ":") || u.Port() == "0" {
		return nil, fmt.Errorf("--server %q: want a URL such as https://board.example:6443, or HOST[:PORT]", text)
	}
	if u.Port() == "" && !isURL {
		u.Host = net.JoinHostPort(u.Hostname(), port)
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
	delete(config.Clusters, certs.AdvertisedContext)
	delete(config.Contexts, certs.AdvertisedContext)
	for _, cluster := range config.Clusters {
		certs.SetServer(cluster, server)
	}
	return clientcmd.Write(*config)
}
