// Package control asks a running server for a snapshot of its cluster, to go back to one,
// and about its datastore. It is how `karve snapshot`, `karve reset`, `karve datastore` and
// `karve status` reach the server: by a unix socket in its data directory that is open to
// the server's user and root.
package control

import (
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
	"strings"
	"time"
)

// Socket is its name in the data directory.
const Socket = "karve.sock"

// ErrMissing: there is no socket, so no server runs, or it is not that far.
var ErrMissing = errors.New("no server answers")

// What the server understands; see package server, control.go.
const (
	SnapshotPath = "/snapshot" // GET: a snapshot file
	ResetPath    = "/reset"    // POST: a snapshot file, or nothing: the one in the data directory
	DryRun       = "dry-run"   // ?dry-run=true: nothing is changed
	Settle       = "settle"    // ?settle=true: when, and until, the cluster has come to rest
)

// What the server tells of its datastore, whose file nobody else can read while it runs;
// see package server, controldatastore.go. The answers are those of package datastore.
const (
	LookPath   = "/datastore/look"   // GET: a Look, in JSON
	StatsPath  = "/datastore/stats"  // GET: FileStats, in JSON
	VerifyPath = "/datastore/verify" // GET: a Verification, in JSON
	BackupPath = "/datastore/backup" // GET: a stream for ReceiveBackup
)

// DatastoreHeader names, in these answers, the file that they are about: an absolute path,
// escaped as in a URL.
const DatastoreHeader = "Karve-Datastore"

// ErrOther: the server's database is not the one that was asked about.
var ErrOther = errors.New("uses another datastore")

// ErrUnknown: the server is of a release that does not know the path.
var ErrUnknown = errors.New("the server is of a release that cannot answer this")

// Result tells what a reset did, or would do.
type Result struct {
	Revision int64 `json:"revision"` // of the datastore, after it
	Missing  int   `json:"missing"`  // objects that were made again
	Changed  int   `json:"changed"`  // and put as they were
	Surplus  int   `json:"surplus"`  // and deleted
	Rounds   int   `json:"rounds"`   // how often, until it was settled
	// Keys are the datastore's names of what differs, in a dry run the first of them.
	Keys []string      `json:"keys,omitempty"`
	Took time.Duration `json:"took"` // of the last round, in ns
}

// Len is how many objects differ, or did.
func (r *Result) Len() int { return r.Missing + r.Changed + r.Surplus }

// Client is for the server of a data directory.
type Client struct {
	http *http.Client
	path string
}

// New does not connect yet. Close the client.
func New(dataDir string) *Client {
	c := &Client{path: filepath.Join(dataDir, Socket)}
	c.http = &http.Client{Transport: &http.Transport{DialContext: c.dial}}
	return c
}

func (c *Client) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	path, err := filepath.Abs(c.path)
	if err == nil { // where the path is too long for a socket it is a link to one
		path, err = filepath.EvalSymlinks(path)
	}
	if err == nil {
		var conn net.Conn
		if conn, err = (&net.Dialer{}).DialContext(ctx, "unix", path); err == nil {
			return conn, nil
		}
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w (run this as root or the server's user)", err)
	}
	return nil, fmt.Errorf("%w at %s: %w", ErrMissing, c.path, err)
}

// Close lets go of connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Snapshot writes one to w. The parameter is Settle.
func (c *Client) Snapshot(ctx context.Context, w io.Writer, parameters ...string) error {
	answer, err := c.do(ctx, http.MethodGet, SnapshotPath, parameters, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(w, answer.Body)
	return err
}

// Get asks for a path of the datastore's, which must be the database named file: the error
// wraps [ErrOther] if the server uses another one. Close the answer.
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

// Uses checks that the server's database is that named file, as Get does.
func (c *Client) Uses(ctx context.Context, file string) error {
	body, err := c.Get(ctx, LookPath, file)
	if err != nil {
		return err
	}
	return body.Close()
}

// uses compares the server's database, as its answer names it, with the wanted file.
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

// Reset goes back to a snapshot, that in the data directory if from is nil. The
// parameters are DryRun and Settle.
func (c *Client) Reset(ctx context.Context, from io.Reader, parameters ...string) (*Result, error) {
	answer, err := c.do(ctx, http.MethodPost, ResetPath, parameters, from)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	out := &Result{}
	if err := json.NewDecoder(answer.Body).Decode(out); err != nil {
		return nil, fmt.Errorf("read the server's answer: %w", err)
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
		if errors.As(err, &wrapped) { // it names an address that says nothing
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
