// Package control is the client of a running server's control socket, a unix socket in its
// data directory that is open to the server's user and root. `karve backup`, `karve reset`,
// `karve datastore`, `karve manifests` and `karve status` use it.
package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Socket is the name of the socket in the data directory.
const Socket = "karve.sock"

// APISocket is the name of the socket in the data directory on which the API is served to users of this machine.
const APISocket = "karve-api.sock"

// ErrMissing means that there is no socket: no server runs, or it has not started to listen.
var ErrMissing = errors.New("no server answers")

// The requests that package server/snapshots answers.
const (
	SnapshotPath = "/snapshot" // GET: returns a backup
	ResetPath    = "/reset"    // POST: takes a backup; an empty body means the one in the data directory
	DryRun       = "dry-run"   // ?dry-run=true: nothing is changed
	Settle       = "settle"    // ?settle=true: waits until the cluster has come to rest
)

// The requests about the datastore. Only the server can read the file while it runs. The
// answers have the types of datastore/sqlitefile and datastore/backup.
const (
	LookPath   = "/datastore/look"   // GET: an Info, in JSON
	StatsPath  = "/datastore/stats"  // GET: a Stats, in JSON
	VerifyPath = "/datastore/verify" // GET: a Verification, in JSON
)

// TunnelsPath asks for the SSH tunnels to nodes (GET): a list of Tunnel, in JSON. It is empty if the
// server has none.
const TunnelsPath = "/tunnels"

// Tunnel is the state of the SSH tunnel to a node.
type Tunnel struct {
	Node    string `json:"node"`
	Address string `json:"address,omitempty"` // of the node's SSH server, while it is connected
	// State is connecting, connected (the kubelet has not answered yet), healthy, unhealthy (the
	// kubelet does not answer) or failed (it waits before the next attempt).
	State       string    `json:"state"`
	Since       time.Time `json:"since"` // of the state
	Connections int       `json:"connections"`
	Problem     string    `json:"problem,omitempty"`
}

// The requests about manifests.
const (
	ManifestsPath      = "/manifests"       // GET: a Manifests, in JSON
	ManifestsApplyPath = "/manifests/apply" // POST: applies all files; a Manifests, in JSON
	ManifestsPrunePath = "/manifests/prune" // POST: takes and returns a list of Stray, in JSON; an empty body only asks
	All                = "all"              // ?all=true: also if there are no files
)

// EncryptionPath asks which file of the user's has the encryption configuration (GET): its path, in JSON; empty if it is Karve's.
const EncryptionPath = "/encryption"

// PagePath asks where the page for people is (GET): its URL, in JSON.
const PagePath = "/page"

// NoticesPath asks what an administrator should know of a server that is ready (GET): a list of sentences, in JSON.
const NoticesPath = "/notices"

// Manifests is the state of the directory of manifests.
type Manifests struct {
	Dir     string     `json:"directory"`
	Problem string     `json:"problem,omitempty"` // why nothing is applied
	Files   []Manifest `json:"files,omitempty"`
	Strays  []string   `json:"inNoFile,omitempty"` // the objects that the server has made and no file describes any more
}

// InNoFile says which objects no file describes any more. It is empty if there are none.
func (m Manifests) InNoFile() string {
	const most = 3
	n := len(m.Strays)
	if n == 0 {
		return ""
	}
	text := fmt.Sprintf("%d objects are in no file any more: ", n)
	if n == 1 {
		text = "1 object is in no file any more: "
	}
	text += strings.Join(m.Strays[:min(most, n)], ", ")
	if n > most {
		text += fmt.Sprintf(" and %d more", n-most)
	}
	return text + " (karve manifests prune shows and deletes them)"
}

// Stray is an object that the server has made from a file, and that no file describes any more.
type Stray struct {
	Object  string `json:"object"` // such as "Deployment.apps default/web"
	UID     string `json:"uid"`
	With    int64  `json:"with,omitempty"`    // objects that go with a Namespace or a CustomResourceDefinition
	AtLeast bool   `json:"atLeast,omitempty"` // they may be more: an API did not answer
	Problem string `json:"problem,omitempty"` // why it cannot be looked at or deleted
}

// AnotherLeads is the problem of a server that does not lead.
const AnotherLeads = "another server leads, and applies the files of its directory"

// OverwriteAnnotation, with the value "false" on an object of a manifest, leaves fields as they are that somebody else has set to another value:
// the file has failed. Fields of other objects are taken over.
const OverwriteAnnotation = "manifests.karve/overwrite"

// The states of a file of manifests.
const (
	Applied = "applied"
	Failed  = "failed" // at least a part of it
)

// Manifest is the state of a file of manifests, or of a directory that cannot be read, whose name ends with a slash.
type Manifest struct {
	File     string     `json:"file"`
	State    string     `json:"state"`
	Objects  int        `json:"objects"`      // that it has in the cluster
	At       *time.Time `json:"at,omitempty"` // of the last try
	Problems []string   `json:"problems,omitempty"`
}

// DatastoreHeader is a header of these answers. It names the file that the answer is about:
// an absolute path, escaped as in a URL.
const DatastoreHeader = "Karve-Datastore"

// ErrOther means that the server uses another database than the one asked about.
var ErrOther = errors.New("uses another datastore")

// ErrUnknown means that the server is of a release that does not have the request.
var ErrUnknown = errors.New("the server is of a release that cannot answer this")

// Result reports what a reset did, or would do.
type Result struct {
	Revision int64 `json:"revision"` // of the datastore, after the reset
	Missing  int   `json:"missing"`  // objects that were created again
	Changed  int   `json:"changed"`  // objects that were changed back
	Surplus  int   `json:"surplus"`  // objects that were deleted
	Rounds   int   `json:"rounds"`   // attempts until the cluster had settled
	// Keys are the keys of these objects in the datastore; a dry run lists only the first.
	Keys []string      `json:"keys,omitempty"`
	Took time.Duration `json:"took"` // of the last round, in ns
}

// Len is the number of objects that differ, or did.
func (r *Result) Len() int { return r.Missing + r.Changed + r.Surplus }

// Client asks the server of a data directory.
type Client struct {
	http *http.Client
	path string
}

// New makes a client. It does not connect yet. Close the client after use.
func New(dataDir string) *Client {
	c := &Client{path: filepath.Join(dataDir, Socket)}
	c.http = &http.Client{Transport: &http.Transport{DialContext: c.dial}}
	return c
}

func (c *Client) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	conn, err := DialSocket(ctx, c.path)
	if err == nil {
		return conn, nil
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w (run this as root or the server's user)", err)
	}
	return nil, fmt.Errorf("%w at %s: %w", ErrMissing, c.path, err)
}

// DialSocket connects to the socket at path, however long that path is.
func DialSocket(ctx context.Context, path string) (net.Conn, error) {
	path, release, err := SocketPath(path)
	if err != nil {
		return nil, err
	}
	defer release()
	return (&net.Dialer{}).DialContext(ctx, "unix", path)
}

// LongestSocketPath is the length of a path that the kernel takes for a socket: sockaddr_un on Linux, without its final
// zero.
const LongestSocketPath = 107

// SocketPath returns a path by which this process can connect to the socket at path, until it calls
// release. That is the absolute path, unless it is too long for a socket. Then Linux has a shorter one in
// /proc, which also serves to listen. On other systems, the server has made a link.
func SocketPath(path string) (short string, release func(), err error) {
	if path, err = filepath.Abs(path); err != nil || len(path) <= LongestSocketPath {
		return path, func() {}, err
	}
	if runtime.GOOS != "linux" {
		path, err = filepath.EvalSymlinks(path)
		return path, func() {}, err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)), func() { dir.Close() }, nil
}

// Close closes the connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Snapshot writes a backup of the cluster to w. After an error, what was written is incomplete. The parameter is Settle.
func (c *Client) Snapshot(ctx context.Context, w io.Writer, parameters ...string) error {
	answer, err := c.do(ctx, http.MethodGet, SnapshotPath, parameters, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(w, answer.Body)
	return err
}

// Get sends a request about the datastore in file. The error wraps [ErrOther] if the server
// uses another file. Close the answer after use.
func (c *Client) Get(ctx context.Context, path, file string) (io.ReadCloser, error) {
	answer, err := c.do(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return nil, err
	}
	if err := c.uses(answer.Header.Get(DatastoreHeader), file); err != nil {
		answer.Body.Close()
		return nil, err
	}
	return answer.Body, nil
}

// Tunnels returns the SSH tunnels of the server. The error is [ErrUnknown] if the server is of a
// release that had none.
func (c *Client) Tunnels(ctx context.Context) ([]Tunnel, error) {
	var all []Tunnel
	return all, c.read(ctx, TunnelsPath, &all)
}

// Manifests returns the state of the manifests of the server. The error is [ErrUnknown] if the server is of a release that had none.
func (c *Client) Manifests(ctx context.Context) (*Manifests, error) {
	out := &Manifests{}
	return out, c.read(ctx, ManifestsPath, out)
}

// ApplyManifests applies all manifests of the server, and returns their state.
func (c *Client) ApplyManifests(ctx context.Context) (*Manifests, error) {
	out := &Manifests{}
	return out, c.ask(ctx, http.MethodPost, ManifestsApplyPath, nil, nil, out)
}

// PruneManifests deletes the agreed ones of the objects that no manifest describes, and returns what became of them. Without agreed, it
// returns all of these objects, and deletes none. The parameter is All.
func (c *Client) PruneManifests(ctx context.Context, agreed []Stray, parameters ...string) (strays []Stray, err error) {
	var body io.Reader
	if agreed != nil {
		text, err := json.Marshal(agreed)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	return strays, c.ask(ctx, http.MethodPost, ManifestsPrunePath, parameters, body, &strays)
}

// Page returns the URL of the page for people. The error is [ErrUnknown] if the server is of a release that had none.
func (c *Client) Page(ctx context.Context) (at string, err error) {
	return at, c.read(ctx, PagePath, &at)
}

// Encryption returns the path of the user's encryption configuration, if the server uses one. The error is [ErrUnknown] if the
// server is of a release that does not tell.
func (c *Client) Encryption(ctx context.Context) (file string, err error) {
	return file, c.read(ctx, EncryptionPath, &file)
}

// Notices returns what an administrator should know. The error is [ErrUnknown] if the server is of a release that had none.
func (c *Client) Notices(ctx context.Context) (all []string, err error) {
	return all, c.read(ctx, NoticesPath, &all)
}

// read decodes the answer to a question.
func (c *Client) read(ctx context.Context, path string, to any) error {
	return c.ask(ctx, http.MethodGet, path, nil, nil, to)
}

// ask decodes the answer to a request.
func (c *Client) ask(ctx context.Context, method, path string, parameters []string, body io.Reader, to any) error {
	answer, err := c.do(ctx, method, path, parameters, body)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(to); err != nil {
		return fmt.Errorf("read the server's answer: %w", err)
	}
	return nil
}

// Uses checks that the server uses the database in file.
func (c *Client) Uses(ctx context.Context, file string) error {
	body, err := c.Get(ctx, LookPath, file)
	if err != nil {
		return err
	}
	return body.Close()
}

// uses compares the file that an answer names with the wanted one.
func (c *Client) uses(header, file string) error {
	if header == "" {
		return fmt.Errorf("%w: it does not say which datastore it uses", ErrUnknown)
	}
	its, err := url.PathUnescape(header)
	if err != nil {
		return fmt.Errorf("read the server's answer: %w", err)
	}
	same := its == file
	if a, err := os.Stat(its); err == nil {
		b, err := os.Stat(file)
		same = err == nil && os.SameFile(a, b)
	}
	if same {
		return nil
	}
	return fmt.Errorf("the server of %s %w, %s; name the --data-dir of the server that uses %s with --data-dir",
		filepath.Dir(c.path), ErrOther, its, file)
}

// Reset returns the cluster to a backup, or to the one in the data directory if from is
// nil. The parameters are DryRun and Settle.
func (c *Client) Reset(ctx context.Context, from io.Reader, parameters ...string) (*Result, error) {
	out := &Result{}
	if err := c.ask(ctx, http.MethodPost, ResetPath, parameters, from, out); err != nil {
		return nil, err
	}
	return out, nil
}

func (c *Client) do(ctx context.Context, method, path string, parameters []string, body io.Reader) (*http.Response, error) {
	query := url.Values{}
	for _, p := range parameters {
		query.Set(p, "true")
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://karve"+path+"?"+query.Encode(), body)
	if err != nil {
		return nil, err
	}
	answer, err := c.http.Do(request)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) { // its URL means nothing to people
			err = wrapped.Err
		}
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		defer answer.Body.Close()
		if answer.StatusCode == http.StatusNotFound {
			return nil, ErrUnknown
		}
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
		return nil, errors.New(strings.TrimSpace(string(text)))
	}
	return answer, nil
}
