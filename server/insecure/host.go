package insecure

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// hostName returns the host of a Host header or URL authority in lower case,
// without port, brackets, zone and trailing dot; ip is valid when it is an IP
// address. ok is false when host cannot be taken apart.
func hostName(host string) (name string, ip netip.Addr, ok bool) {
	name = host
	if rest, found := strings.CutPrefix(host, "["); found {
		inside, port, closed := strings.Cut(rest, "]")
		if !closed || !isPort(port) {
			return "", netip.Addr{}, false
		}
		ip, err := netip.ParseAddr(inside)
		if err != nil || !ip.Is6() {
			return "", netip.Addr{}, false
		}
		ip = ip.Unmap().WithZone("")
		return ip.String(), ip, true
	}
	if colon := strings.LastIndexByte(host, ':'); colon >= 0 {
		// More than one colon is an IPv6 address without brackets: no client
		// sends that, and where its port begins is anybody's guess.
		if name = host[:colon]; strings.Contains(name, ":") || !isPort(host[colon:]) {
			return "", netip.Addr{}, false
		}
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if ip, err := netip.ParseAddr(name); err == nil {
		return ip.String(), ip, true
	}
	return name, netip.Addr{}, name != "" && !strings.HasSuffix(name, ".")
}

// isPort reports whether s is nothing, or a colon and digits.
func isPort(s string) bool {
	if s == "" {
		return true
	}
	digits, found := strings.CutPrefix(s, ":")
	return found && strings.Trim(digits, "0123456789") == ""
}

// loopbackName reports whether a browser always takes this host for its own
// machine: localhost and everything below it (RFC 6761, section 6.3), 127/8, ::1.
func loopbackName(name string, ip netip.Addr) bool {
	if ip.IsValid() {
		return ip.IsLoopback()
	}
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}

// hostAllowed reports whether a request with this Host header may have been
// meant for this listener.
//
// The attack this stops is DNS rebinding: a page of http://evil.example has its
// name changed to 127.0.0.1 and then talks to this port as its own origin. The
// browser sends the name in Host, and a name is what the attack cannot do
// without; so every IP address would be harmless here, but only our own are let
// in while there is no need for others. The port is not compared: behind
// "ssh -L 9090:localhost:8080" it is another one, and an attacker chooses the
// name, not the port.
//
// No host at all is let in: HTTP/1.0 health checks (HAProxy) send none, while
// every browser sends one.
func (o *Options) hostAllowed(host string) bool {
	if host == "" {
		return true
	}
	name, ip, ok := hostName(host)
	switch {
	case !ok:
		return false
	case loopbackName(name, ip):
		return true
	case !ip.IsValid() || !o.Addr.IsValid():
		return false
	case o.Addr.IsUnspecified():
		// Bound to every address: which of them a client used, and whether a
		// router in between translated it, is not known here.
		return o.AllowRemote
	}
	return ip == o.Addr
}

// originAllowed reports whether a page of this origin may send requests to a
// listener that it reached as host. It is stricter than hostAllowed: an
// attacker's page may well live at a bare IP address, so with the listener
// bound to every address only the page's own host will do.
func (o *Options) originAllowed(origin, host string) bool {
	u, err := url.Parse(origin)
	// "null" (sandboxed frames, file:) has no scheme; browser extensions and
	// desktop shells have others.
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Opaque != "" {
		return false
	}
	name, ip, ok := hostName(u.Host)
	switch {
	case !ok:
		return false
	case loopbackName(name, ip):
		return true
	case !ip.IsValid() || !o.Addr.IsValid():
		return false
	case o.Addr.IsUnspecified():
		_, reached, ok := hostName(host)
		return ok && o.AllowRemote && ip == reached
	}
	return ip == o.Addr
}

// foreign says in a sentence why a request was not meant for this listener,
// or nothing.
func (o *Options) foreign(r *http.Request) (kind refusal, sentence string) {
	if !o.hostAllowed(r.Host) {
		return refusedHost, "this port has no authentication and answers only to requests for localhost, a loopback address " +
			"or the address it is bound to, not for the host " + quote(r.Host) + " (a web page could have made that name point here); " +
			"use http://127.0.0.1 with the port, or the authenticated port with a kubeconfig"
	}
	// A browser adds Origin to every WebSocket and to everything that is not a
	// plain read; a page cannot change it.
	for _, origin := range r.Header["Origin"] {
		if !o.originAllowed(origin, r.Host) {
			return refusedOrigin, "this port has no authentication and takes no requests from web pages of other sites, such as " +
				quote(origin) + "; use the authenticated port with a kubeconfig"
		}
	}
	// Images, scripts and links of another site carry no Origin.
	for _, site := range r.Header["Sec-Fetch-Site"] {
		if strings.EqualFold(strings.TrimSpace(site), "cross-site") {
			return refusedOrigin, "this port has no authentication and takes no requests from web pages of other sites " +
				"(Sec-Fetch-Site: cross-site); open its address by hand, or use the authenticated port with a kubeconfig"
		}
	}
	return 0, ""
}
