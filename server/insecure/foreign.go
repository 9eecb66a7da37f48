package insecure

import (
	"mime"
	"net/http"
	"net/url"
	"strings"
)

// A page in a browser on this machine can send requests to any of its ports. The browser,
// and not the page, determines what such a request looks like:
//
//   - Origin is on every WebSocket, on every request whose answer a page of another
//     origin may read, and, in today's browsers, on everything but GET and HEAD. It
//     has to be this port's own. Otherwise a page that any other port serves could do
//     here whatever it likes.
//   - Sec-Fetch-Site is on every request of today's browsers to localhost. Images,
//     scripts, frames and links have it and no Origin.
//     Browsers do not send it to an address without TLS that is not loopback.
//     Without both, a page can only send a GET whose answer the browser keeps from
//     it: see the header that Guard adds to every answer.
//   - A body that a page may send without a preflight has one of three types or
//     none, and the API takes a body without a type for JSON.
//
// kubectl, curl and client-go send none of these headers.

// foreign returns why a request was not meant for this listener: its kind, and a sentence. The
// sentence is empty if the request was meant for it.
func (o *Options) foreign(r *http.Request) (kind refusal, sentence string) {
	if !o.hostAllowed(r.Host) {
		return refusedHost, "this port has no authentication and answers only to requests for localhost, a loopback address " +
			"or the address it is bound to, not for the host " + quote(r.Host) + " (a web page could have made that name point here); " +
			"use http://127.0.0.1 with the port, or the authenticated port with a kubeconfig"
	}
	own := false // the browser says that the request comes from this port's page, or from its user
	for _, origin := range r.Header["Origin"] {
		if !sameOrigin(origin, r.Host) {
			return refusedOrigin, fromPage(quote(origin))
		}
		own = true
	}
	for _, site := range r.Header["Sec-Fetch-Site"] {
		switch strings.TrimSpace(site) {
		case "same-origin", "none": // none: typed, or a bookmark
			own = true
		default:
			return refusedOrigin, fromPage("(Sec-Fetch-Site: "+quote(site)+")") + "; or type the address into the browser"
		}
	}
	if !own && r.ContentLength != 0 {
		if found, simple := simpleType(r); simple {
			return refusedBody, "this port has no authentication and refuses a body " + found + ", which a web page of any site can send; " +
				"give the type of the body, such as Content-Type: application/json, or use the authenticated port with a kubeconfig"
		}
	}
	return 0, ""
}

func fromPage(page string) string {
	return "this port has no authentication and takes no requests from web pages of other sites or ports, such as " +
		page + "; use the authenticated port with a kubeconfig"
}

// sameOrigin reports whether this listener, under the name host, serves pages of this origin
// (RFC 6454): scheme, host and port are the same.
//
// The scheme is always http, because this listener has no TLS. The port is the client's:
// behind "ssh -L 9090:localhost:8080" both are 9090.
func sameOrigin(origin, host string) bool {
	u, err := url.Parse(origin)
	// "null" (sandboxed frames, file:) has no scheme.
	if err != nil || u.Scheme != "http" || u.Opaque != "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	page, ok := parseAuthority(u.Host)
	here, known := parseAuthority(host)
	return ok && known && page.withPort() == here.withPort()
}

// withPort is a with http's default port, if it has none.
func (a authority) withPort() authority {
	if a.port == "" {
		a.port = "80"
	}
	return a
}

// simpleType reports whether a page may send a body of this Content-Type without
// asking first (https://fetch.spec.whatwg.org/#cors-safelisted-request-header), and
// names the type. A form sends one of three, a Blob none.
func simpleType(r *http.Request) (found string, simple bool) {
	header := r.Header["Content-Type"]
	if len(header) == 0 {
		return "without a Content-Type", !fromKubernetesClient(r)
	}
	for _, value := range header {
		found = "with the Content-Type " + quote(value)
		kind, _, err := mime.ParseMediaType(value)
		if err != nil {
			return found, true
		}
		switch kind {
		case "text/plain", "application/x-www-form-urlencoded", "multipart/form-data":
			return found, true
		}
	}
	return found, false
}

// fromKubernetesClient reports whether the sender says that it is Kubernetes' own
// client, as kubectl does: "kubectl/v1.37.2 (linux/amd64) kubernetes/0a1b2c3"
// (k8s.io/client-go/rest, DefaultKubernetesUserAgent). "kubectl create --raw" sends
// its body without a Content-Type. A page cannot choose the User-Agent of a request
// that its browser sends without a preflight, and a browser's begins with Mozilla.
func fromKubernetesClient(r *http.Request) bool {
	agent := r.Header["User-Agent"]
	return len(agent) == 1 && !strings.HasPrefix(agent[0], "Mozilla/") && strings.Contains(agent[0], " kubernetes/")
}
