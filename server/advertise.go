package server

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/karve-k8s/karve/certs"
)

// endpoint is an address in front of the server: of --control-plane-endpoint, for nodes, or of
// --advertise-url, for users.
type endpoint struct {
	host string
	port string // empty: that of the secure listener
}

// url returns the URL of an endpoint with a port.
func (e *endpoint) url() string { return "https://" + net.JoinHostPort(e.host, e.port) }

// loopback reports whether only this machine can reach it.
func (e *endpoint) loopback() bool { return certs.IsLoopback(e.host) }

// parseEndpoint parses --control-plane-endpoint. It returns nil if the value is empty.
func parseEndpoint(value string) (*endpoint, error) {
	if value == "" {
		return nil, nil
	}
	e, why := parseHostPort(value)
	if why != "" {
		return nil, fmt.Errorf("--control-plane-endpoint %s: %s; want the name or address at which nodes reach the API server, such as lb.example.org or 192.0.2.1:6443", value, why)
	}
	return e, nil
}

// parseAdvertiseURL parses --advertise-url. It returns nil if the value is empty. Without a port, it is that
// of https.
func parseAdvertiseURL(value string) (*endpoint, error) {
	if value == "" {
		return nil, nil
	}
	shown := ""
	bad := func(why string) error {
		return fmt.Errorf("--advertise-url%s: %s; want the URL at which users reach the cluster, such as https://karve.example:6443", shown, why)
	}
	u, err := url.Parse(value)
	if err != nil {
		return nil, bad("it cannot be parsed") // it may contain a password
	}
	shown = " " + u.Redacted()
	switch {
	case u.Scheme != "https" || u.Opaque != "":
		return nil, bad("it does not begin with https://")
	case u.User != nil:
		return nil, bad("it has a user")
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, bad("it has more than a host and a port")
	}
	e, why := parseHostPort(u.Host)
	if why != "" {
		return nil, bad(why)
	}
	e.port = cmp.Or(e.port, "443")
	return e, nil
}

// parseHostPort parses HOST, HOST:PORT, or an address. If it cannot, it says why.
func parseHostPort(value string) (e *endpoint, why string) {
	e = &endpoint{host: value}
	if inner, ok := strings.CutPrefix(value, "["); ok && strings.HasSuffix(inner, "]") {
		e.host = strings.TrimSuffix(inner, "]")
	}
	if net.ParseIP(e.host) == nil && strings.Contains(value, ":") {
		var err error
		if e.host, e.port, err = net.SplitHostPort(value); err != nil {
			return nil, "it is not host:port"
		}
		if n, err := strconv.ParseUint(e.port, 10, 16); err != nil || n == 0 {
			return nil, fmt.Sprintf("%q is not a port", e.port)
		}
	}
	name, ip, err := certs.ParseSAN(e.host)
	switch {
	case err != nil:
		return nil, "it is neither a DNS name nor an address"
	case strings.HasPrefix(name, "*"):
		return nil, "a wildcard is no name to connect to"
	case ip != nil && ip.IsUnspecified():
		return nil, "nobody can connect to this address"
	}
	return e, ""
}
