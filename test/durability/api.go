package durability

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/karve-k8s/karve/certs"
)

// ErrRefused means that the server answered with a 4xx: it did not carry out the request.
var ErrRefused = errors.New("the server refused the request")

// A Refusal is a 4xx, which means that the request was not carried out.
type Refusal struct {
	Code    int
	Request string
	Message string
}

// Error implements error.
func (r *Refusal) Error() string {
	return fmt.Sprintf("%s: %d %.300s", r.Request, r.Code, r.Message)
}

// Unwrap makes every Refusal an ErrRefused.
func (r *Refusal) Unwrap() error { return ErrRefused }

// Refused is the HTTP status of a Refusal, 0 for every other error.
func Refused(err error) int {
	var r *Refusal
	if errors.As(err, &r) {
		return r.Code
	}
	return 0
}

// Object has the fields of a Kubernetes object that the tests use. Its value is an annotation, so
// that all kinds have one.
type Object struct {
	APIVersion string         `json:"apiVersion,omitempty"`
	Kind       string         `json:"kind,omitempty"`
	Metadata   Metadata       `json:"metadata"`
	Spec       map[string]any `json:"spec,omitempty"`
	Status     map[string]any `json:"status,omitempty"`
	Data       map[string]any `json:"data,omitempty"`
}

// Metadata has the fields of an object's or a list's metadata that the tests use.
type Metadata struct {
	Name            string            `json:"name,omitempty"`
	Namespace       string            `json:"namespace,omitempty"`
	UID             string            `json:"uid,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Continue        string            `json:"continue,omitempty"`
}

// ValueAnnotation holds the value that an object was last set to.
const ValueAnnotation = "durability.karve/value"

// Value is what the object was last set to.
func (o *Object) Value() string { return o.Metadata.Annotations[ValueAnnotation] }

// Revision is the object's resource version, 0 if it has none.
func (o *Object) Revision() int64 { return o.Metadata.Revision() }

// Revision is the resource version as a number, 0 if there is none.
func (m *Metadata) Revision() int64 {
	revision, _ := strconv.ParseInt(m.ResourceVersion, 10, 64)
	return revision
}

// API is a client of one server. It reads and writes JSON over HTTP and nothing else,
// so that no cache or rate limit stands between a test and the server, and no write is sent twice.
type API struct {
	URL   string
	Token string // bearer token, if the connection has no client certificate
	HTTP  *http.Client
}

// Connect returns a client with the administrator's certificate of a data directory.
func Connect(url, dataDir string) (*API, error) {
	file := func(name certs.Name, ext string) string {
		return filepath.Join(dataDir, "certs", string(name)+ext)
	}
	admin, err := tls.LoadX509KeyPair(file(certs.Admin, ".crt"), file(certs.Admin, ".key"))
	if err != nil {
		return nil, fmt.Errorf("read the administrator's certificate: %w", err)
	}
	roots := x509.NewCertPool()
	ca, err := os.ReadFile(file(certs.ServerCA, ".crt"))
	if err != nil {
		return nil, fmt.Errorf("read the server's CA: %w", err)
	}
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{
		MaxIdleConnsPerHost: 64,
		TLSClientConfig:     &tls.Config{Certificates: []tls.Certificate{admin}, RootCAs: roots},
	}
	return &API{URL: url, HTTP: &http.Client{Transport: transport}}, nil
}

// Do sends one request and decodes the answer into out, unless out is nil. An error
// that is an ErrRefused means that the request had no effect; after any other error
// it may have had one.
func (a *API) Do(ctx context.Context, method, path string, in, out any) error {
	resp, err := a.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	return decode(resp, out)
}

func decode(resp *http.Response, out any) error {
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || out == nil {
		return err
	}
	if page, ok := out.(*[]byte); ok {
		*page = text
		return nil
	}
	return json.Unmarshal(text, out)
}

// cacheLimit is how long a server may take to fill a cache, on a busy machine.
const cacheLimit = time.Minute

// read sends a list or a watch, and again, as clients do, while a server that has just started answers 429: the cache of
// the type is not there yet.
func (a *API) read(ctx context.Context, path string) (*http.Response, error) {
	for began := time.Now(); ; {
		resp, err := a.send(ctx, http.MethodGet, path, nil)
		if Refused(err) != http.StatusTooManyRequests || time.Since(began) > cacheLimit {
			return resp, err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// send returns the answer if it is a 2xx.
func (a *API) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.URL+path, body)
	if err != nil {
		return nil, err
	}
	if a.Token != "" {
		req.Header.Set("Authorization", "Bearer "+a.Token)
	}
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	} else if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := a.HTTP.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 500 || resp.StatusCode < 400 {
		return nil, fmt.Errorf("%s %s: %s: %.300s", method, path, resp.Status, text) // the server may have carried it out
	}
	var status struct{ Message string }
	if json.Unmarshal(text, &status) != nil || status.Message == "" {
		status.Message = string(text)
	}
	return nil, &Refusal{resp.StatusCode, method + " " + path, status.Message}
}

// List reads a collection in pages of 500 and returns its objects by namespace/name
// (by name where there is no namespace) and the revision that the list is of.
func (a *API) List(ctx context.Context, path, query string) (map[string]Object, int64, error) {
	all := map[string]Object{}
	for next := ""; ; {
		var page struct {
			Metadata Metadata `json:"metadata"`
			Items    []Object `json:"items"`
		}
		resp, err := a.read(ctx, path+"?limit=500&"+query+"&continue="+next)
		if err == nil {
			err = decode(resp, &page)
		}
		if err != nil {
			return nil, 0, err
		}
		for _, item := range page.Items {
			all[item.Key()] = item
		}
		if next = page.Metadata.Continue; next == "" {
			return all, page.Metadata.Revision(), nil
		}
	}
}

// Key is the object's namespace/name, or its name where there is no namespace.
func (o *Object) Key() string {
	return strings.TrimPrefix(o.Metadata.Namespace+"/"+o.Metadata.Name, "/")
}

// Deployment has Pods for simulated nodes, which end after a second.
func Deployment(name string, replicas int) Object {
	labels := map[string]any{"app": name}
	return Object{APIVersion: "apps/v1", Kind: "Deployment", Metadata: Metadata{Name: name}, Spec: map[string]any{
		"replicas": replicas, "selector": map[string]any{"matchLabels": labels}, "template": map[string]any{
			"metadata": map[string]any{"labels": labels},
			"spec":     map[string]any{"terminationGracePeriodSeconds": 1, "containers": []any{map[string]any{"name": "c", "image": "none"}}},
		},
	}}
}
