package insecure

import (
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// refusal is the kind of a refused request, for the log.
type refusal int

const (
	refusedHost refusal = iota
	refusedOrigin
	refusedBody
	refusedOwner
	refusedMethod
	refusals // the number of kinds
)

var refusalNames = [refusals]string{"host", "origin", "body", "owner", "method"}

// Guard returns a handler that passes requests to next if they come from root or the server's
// own user on this machine and were meant for this listener. It answers the others with 403
// Forbidden and a sentence that kubectl prints.
//
// The ResponseWriter is passed on unchanged, so upgrades (exec, attach, port-forward),
// flushing and trailers work as without the guard. Every answer has the header
// "Cross-Origin-Resource-Policy: same-origin", so a browser gives it to no page of another
// origin, not even as an image or a script. The server must have [ConnContext] as its
// ConnContext, as [Serve] does: the guard refuses a request whose connection is not known.
//
// Guard answers CONNECT with 405, because this is not a proxy. An absolute-form request target
// counts as the Host (RFC 9112, section 3.2.2). "OPTIONS *" gets an empty 200 if it passes the
// checks.
func Guard(next http.Handler, opts Options) http.Handler {
	return &guard{next: next, opts: opts, owners: thisProcess()}
}

type guard struct {
	next   http.Handler
	opts   Options
	owners owners
	warned [refusals]atomic.Int64 // when last, in unix seconds
}

func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
	// The owner comes first, so that other users learn nothing about the other rules.
	if sentence := g.owners.refuse(r.Context(), &g.opts); sentence != "" {
		g.refuse(w, r, http.StatusForbidden, refusedOwner, sentence)
		return
	}
	if kind, sentence := g.opts.foreign(r); sentence != "" {
		g.refuse(w, r, http.StatusForbidden, kind, sentence)
		return
	}
	switch {
	case r.Method == http.MethodConnect:
		g.refuse(w, r, http.StatusMethodNotAllowed, refusedMethod, "this is an API server, not a proxy: CONNECT is not supported")
	case r.Method == http.MethodOptions && r.URL.Path == "*":
		w.Header().Set("Content-Length", "0")
	default:
		g.next.ServeHTTP(w, r)
	}
}

func (g *guard) refuse(w http.ResponseWriter, r *http.Request, code int, kind refusal, sentence string) {
	g.log(r, kind, sentence)
	// Plain text, not a metav1.Status: client-go shows the sentence of either, but
	// kubectl's discovery only that of text (k8s.io/client-go/rest/request.go,
	// isTextResponse), and kubectl begins with discovery.
	body := sentence + "\n"
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	if r.Method != http.MethodHead {
		_, _ = io.WriteString(w, body) // the client may have gone
	}
}

// log warns of the first refusal of a kind in each minute, so that a web page cannot fill the
// disk with lines. It logs the others at debug level.
func (g *guard) log(r *http.Request, kind refusal, sentence string) {
	if g.opts.Log == nil {
		return
	}
	entry := g.opts.Log.WithField("remote", r.RemoteAddr).WithField("refused", refusalNames[kind])
	sentence = "refused a request on the insecure port: " + sentence
	now, last := time.Now().Unix(), g.warned[kind].Load()
	if now-last >= 60 && g.warned[kind].CompareAndSwap(last, now) {
		entry.Warn(sentence)
		return
	}
	entry.Debug(sentence)
}

// quote makes a header's value fit for a message. The sender chooses it, so its length is
// limited, and it cannot act on a terminal.
func quote(s string) string {
	const longest = 200
	if len(s) > longest {
		s = s[:longest] + "…"
	}
	return strconv.QuoteToASCII(s)
}
