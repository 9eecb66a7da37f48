// Package page is the page at /karve/: what the server does, for people. It has no script, and costs nothing while
// nobody looks at it.
package page

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"net/http"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Path is where the page is.
const Path = "/karve/"

// The states of a server.
const (
	Ready    = "ready"
	Starting = "starting"
	NotReady = "not ready"
	Stopping = "stopping"
)

// View is what the page shows. What is not known is zero.
type View struct {
	Now           time.Time
	State         string
	Since         time.Time // of ready, or else of the start
	Problem       string    // why it is not ready
	Began         time.Time
	Took          time.Duration // of the start
	Version       string
	Kubernetes    string
	Host, URL     string
	DataDir       string
	Parts         []Part
	Hour          []Minute
	Memory, Limit int64 // in bytes; Limit 0: there is none

	Datastore *sqlitefile.Info // nil if it is not the built-in one
	Elsewhere string           // what it is then
	Keys      int64
	Full      bool // the disk is, and writes are refused

	Certificates []certs.Info
	Nodes        []Node
	NodesUnknown string
	MoreNodes    int // that are not in Nodes
	Waiting      int // Pods without a node
	Events       []Event
	MoreEvents   int // that are not in Events
	EventsError  string

	Backup        *backup.Record
	BackupFailure *backup.Failure
	Schedule      string // of backups
	Manifests     control.Manifests
}

// Part is a part of the control plane, and how it started.
type Part struct {
	Name        string
	Begin, Took time.Duration // Took is 0 while it starts
	Problem     string        // what blocks it
}

// Node is a node and its Pods.
type Node struct {
	Name, Kubelet string
	Simulated     bool
	Ready         bool
	Problem       string
	Pods, Running int
}

// Event is an Event of type Warning.
type Event struct {
	At                      time.Time
	Object, Reason, Message string
	Count                   int32
}

var (
	//go:embed page.html
	markup string
	//go:embed page.css
	style string

	// The template is parsed for the first visitor.
	parsed = sync.OnceValue(func() *template.Template {
		return template.Must(template.New("page").Funcs(template.FuncMap{
			"bytes": size, "ago": ago, "span": span, "lasting": duration.HumanDuration, "time": stamp, "style": func() template.CSS { return template.CSS(style) },
		}).Parse(markup))
	})
	policy = sync.OnceValue(func() string {
		sum := sha256.Sum256([]byte(style))
		return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
			"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	})
)

// Handler serves the page. look is called for each visit. Whoever reaches the handler may see everything: the API
// server authorizes them before.
func Handler(look func(context.Context) *View) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy())
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "this page can only be read", http.StatusMethodNotAllowed)
			return
		}
		var text bytes.Buffer
		if err := parsed().Execute(&text, look(r.Context())); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Length", strconv.Itoa(text.Len()))
		w.WriteHeader(http.StatusOK) // upstream's timeout filter forgets headers that are not written
		if r.Method == http.MethodGet {
			_, _ = w.Write(text.Bytes()) // the client may have gone
		}
	})
}
