package insecure

import (
	"net/netip"
	"strings"
)

// authority is a Host header, or the host and port of a URL, in a form that can be
// compared: the name in lower case, without brackets, zone and trailing dot.
type authority struct {
	name string
	ip   netip.Addr // valid if the name is an IP address
	port string     // without leading zeros; empty if none is given
}

// parseAuthority reads host. ok is false if host is malformed.
func parseAuthority(host string) (a authority, ok bool) {
	name, port := host, ""
	if rest, found := strings.CutPrefix(host, "["); found {
		if name, port, found = strings.Cut(rest, "]"); !found {
			return authority{}, false
		}
		ip, err := netip.ParseAddr(name)
		if err != nil || !ip.Is6() {
			return authority{}, false
		}
		a.ip = ip.Unmap().WithZone("")
		a.name = a.ip.String()
	} else {
		if colon := strings.LastIndexByte(host, ':'); colon >= 0 {
			name, port = host[:colon], host[colon:]
		}
		// Another colon makes it an IPv6 address without brackets. No client sends
		// that, and where its port begins is unclear.
		a.name = strings.ToLower(strings.TrimSuffix(name, "."))
		if a.name == "" || strings.Contains(a.name, ":") || strings.HasSuffix(a.name, ".") {
			return authority{}, false
		}
		if ip, err := netip.ParseAddr(a.name); err == nil {
			a.ip, a.name = ip, ip.String()
		}
	}
	a.port, ok = parsePort(port)
	return a, ok
}

// parsePort reads nothing, or a colon and digits. A colon alone is no port.
func parsePort(s string) (port string, ok bool) {
	if s == "" {
		return "", true
	}
	digits, found := strings.CutPrefix(s, ":")
	if !found || strings.Trim(digits, "0123456789") != "" {
		return "", false
	}
	port = strings.TrimLeft(digits, "0")
	if port == "" && digits != "" {
		port = "0"
	}
	return port, true
}

// isLoopback reports whether a browser always takes this host for its own
// machine: localhost and everything below it (RFC 6761, section 6.3), 127/8, ::1.
func (a authority) isLoopback() bool {
	if a.ip.IsValid() {
		return a.ip.IsLoopback()
	}
	return a.name == "localhost" || strings.HasSuffix(a.name, ".localhost")
}

// hostAllowed reports whether a request with this Host header may have been meant for this
// listener.
//
// This stops DNS rebinding: a page of http://evil.example changes the address of its name to
// 127.0.0.1 and then calls this port as its own origin. The browser sends the name in Host.
// The attack needs a name, so an IP address would be harmless; nevertheless only this
// listener's are accepted. Any port is accepted: behind "ssh -L 9090:localhost:8080" it
// differs from the listener's.
//
// A request without a Host is accepted. Health checks by HTTP/1.0 (HAProxy) send none; every
// browser sends one.
func (o *Options) hostAllowed(host string) bool {
	if host == "" {
		return true
	}
	a, ok := parseAuthority(host)
	bound := o.Addr.Unmap().WithZone("")
	switch {
	case !ok:
		return false
	case a.isLoopback():
		return true
	case !a.ip.IsValid() || !bound.IsValid():
		return false
	case bound.IsUnspecified():
		// The listener is bound to every address. Which one a client used, and
		// whether a router translated it, is not known.
		return o.AllowRemote
	}
	return a.ip == bound
}
