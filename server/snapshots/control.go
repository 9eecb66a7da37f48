// Package snapshots serves the control socket of a running server. Its requests make a snapshot of
// the cluster, reset the cluster to a snapshot, and inspect the file of the datastore. The package
// also prepares the data directory of a fork.
package snapshots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/snapshot"
)

// Manifests is the part that applies files.
type Manifests interface {
	Status() control.Manifests
	Apply(context.Context) (control.Manifests, error)
	Prune(ctx context.Context, agreed []control.Stray, all bool) ([]control.Stray, error)
}

// Options is the configuration of the part.
type Options struct {
	DataDir string
	// Held returns an error if the data directory is not that of this server any more. Nil: it always is.
	Held func() error
	// Files are paths of files outside the data directory that snapshots contain.
	Files []string
	// ManifestsDir is the directory of manifests, which snapshots contain.
	ManifestsDir string
	// CheckReset returns an error for contents that the server could not read after a reset to them.
	CheckReset func(*datastore.Dump) error
	Manifests  Manifests // nil: there are none
	// Encryption is the path of the user's encryption configuration; empty if the server has none.
	Encryption string
	// Notices returns what an administrator should know. It may be nil.
	Notices func() []string
	// Page returns the URL of the page for people.
	Page func() string
	Log  *logrus.Logger
	// Connect is called when the part starts.
	Connect func() Connection
}

// Connection is what the part gets from other parts.
type Connection struct {
	// Engine is the built-in datastore; nil with any other datastore.
	Engine *datastore.Engine
	// Ready reports whether every part of the control plane is ready.
	Ready func() bool
	// Begun returns when the controllers have written what they write to every cluster at their start. It
	// may be nil.
	Begun func(context.Context) error
	// Forget makes the controllers forget which owners of objects are absent. A reset calls it when they have no
	// work, because it may create such owners again.
	Forget func()
	// WasReset is called at the end of each reset, when nothing compares the cluster with the snapshot any
	// more. What it changes is not reset again. It may be nil.
	WasReset func()
	// Tunnels returns the state of the SSH tunnels to nodes. Nil: there are none.
	Tunnels func() []control.Tunnel
}

// Control is the part that serves the control socket in the data directory. `karve backup`,
// `karve reset` and `karve datastore` use it. Package control has the client.
type Control struct {
	Options
	Connection // set when Run starts

	one sync.Mutex // one reset at a time
	own ownContents
}

// New returns the part. It listens in Run.
func New(o Options) *Control { return &Control{Options: o} }

// Run serves the socket until ctx ends. It returns when no request uses the engine any more.
func (c *Control) Run(ctx context.Context, ready func()) error {
	c.Connection = c.Connect()
	server, err := listenControl(c.DataDir)
	if err != nil {
		return err
	}
	defer server.stop()
	handle := func(pattern string, do controlHandler) {
		server.handle(pattern, func(w http.ResponseWriter, r *http.Request) error {
			if err := c.held(); err != nil {
				return err
			}
			return do(w, r)
		})
	}
	handle("GET "+control.SnapshotPath, c.builtIn(c.snapshot))
	handle("POST "+control.ResetPath, c.whenReady(c.reset))
	answer := func(path string, with func() any) {
		handle("GET "+path, func(w http.ResponseWriter, _ *http.Request) error { return sendJSON(w, with()) })
	}
	answer(control.TunnelsPath, func() any {
		all := []control.Tunnel{}
		if c.Tunnels != nil {
			all = c.Tunnels()
		}
		return all
	})
	answer(control.EncryptionPath, func() any { return c.Encryption })
	if c.Manifests != nil {
		answer(control.ManifestsPath, func() any { return c.Manifests.Status() })
		handle("POST "+control.ManifestsApplyPath, c.applyManifests)
		handle("POST "+control.ManifestsPrunePath, c.pruneManifests)
	}
	if c.Notices != nil {
		answer(control.NoticesPath, func() any { return c.Notices() })
	}
	if c.Page != nil {
		answer(control.PagePath, func() any { return c.Page() })
	}
	questions := DatastoreHandler(c.Engine)
	handle("/datastore/", func(w http.ResponseWriter, r *http.Request) error {
		questions.ServeHTTP(w, r)
		return nil
	})
	server.serve()
	ready()
	<-ctx.Done()
	return nil
}

func sendJSON(w http.ResponseWriter, value any) error {
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(value)
}

func (c *Control) applyManifests(w http.ResponseWriter, r *http.Request) error {
	out, err := c.Manifests.Apply(r.Context())
	if err != nil {
		return err
	}
	return sendJSON(w, out)
}

func (c *Control) pruneManifests(w http.ResponseWriter, r *http.Request) error {
	var agreed []control.Stray
	if err := json.NewDecoder(r.Body).Decode(&agreed); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	out, err := c.Manifests.Prune(r.Context(), agreed, r.URL.Query().Get(control.All) == "true")
	if err != nil {
		return err
	}
	return sendJSON(w, append([]control.Stray{}, out...))
}

// notBuiltIn is the answer if the datastore is not the built-in one.
const notBuiltIn = "the datastore of this server is not the built-in one (--datastore-endpoint): use its own tools. A copy of the database, such as that of pg_dump, and the file of --cluster-token-file are a whole backup"

// builtIn refuses requests if the datastore is not the built-in one.
func (c *Control) builtIn(do controlHandler) controlHandler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if c.Engine == nil {
			return controlError{http.StatusNotImplemented, notBuiltIn}
		}
		return do(w, r)
	}
}

// whenReady refuses requests until the server is ready.
func (c *Control) whenReady(do controlHandler) controlHandler {
	return c.builtIn(func(w http.ResponseWriter, r *http.Request) error {
		if !c.Ready() {
			return controlError{http.StatusServiceUnavailable, "the server is not ready yet"}
		}
		return do(w, r)
	})
}

func (o Options) held() error {
	if o.Held == nil {
		return nil
	}
	return o.Held()
}

// write writes a snapshot of the cluster with this datastore, unless another directory took the place of the data directory meanwhile.
func (o Options) write(ctx context.Context, engine *datastore.Engine, scratch string, w io.Writer) (*snapshot.Info, error) {
	info, err := snapshot.Write(ctx, o.source(engine), scratch, w)
	if err == nil {
		err = o.held()
	}
	return info, err
}

// source is the cluster with this datastore.
func (o Options) source(engine *datastore.Engine) snapshot.Source {
	return snapshot.Source{DataDir: o.DataDir, Files: o.Files, ManifestsDir: o.ManifestsDir, Backup: func(ctx context.Context, to string) (*backup.Result, error) {
		return engine.Backup(ctx, to)
	}}
}

// How long a snapshot waits for controllers that have just started, and then for the cluster to
// settle. Controllers take milliseconds, unless a webhook or a policy refuses what they write.
const (
	beginLimit = 15 * time.Second
	restLimit  = 5 * time.Second
)

// snapshot sends a backup.
func (c *Control) snapshot(w http.ResponseWriter, r *http.Request) error {
	if r.URL.Query().Get(control.Settle) == "true" {
		c.rest(r.Context())
	}
	temp, err := snapshot.Scratch(c.DataDir, snapshot.SizeOf(c.Engine.Path()))
	if err != nil {
		return err
	}
	defer temp.Remove()
	w.Header().Set("Content-Type", "application/x-tar")
	body := &begun{Writer: w}
	if _, err := c.write(r.Context(), c.Engine, temp.Dir(), body); err == nil || !body.began {
		return err
	}
	panic(http.ErrAbortHandler) // the client gets an error instead of the end of the file
}

// begun remembers that something has been written.
type begun struct {
	io.Writer
	began bool
}

func (b *begun) Write(p []byte) (int, error) {
	b.began = true
	return b.Writer.Write(p)
}

// rest waits for the cluster to settle. If it does not do so in time, the snapshot has it as it is.
func (c *Control) rest(ctx context.Context) {
	if c.Begun != nil {
		begin, cancel := context.WithTimeout(ctx, beginLimit)
		_ = c.Begun(begin)
		cancel()
	}
	ctx, cancel := context.WithTimeout(ctx, restLimit)
	defer cancel()
	_ = awaitRest(ctx, c.Engine, func() (bool, error) { return true, nil })
}

// reset returns the cluster to a snapshot. It writes new revisions, so nothing restarts and no
// client loses its connection.
func (c *Control) reset(w http.ResponseWriter, r *http.Request) error {
	c.one.Lock()
	defer c.one.Unlock()
	to, err := c.wanted(r)
	if err == nil && c.CheckReset != nil { // each time: keys may be dropped while the contents of the snapshot stay in memory
		err = c.CheckReset(to)
	}
	if err != nil {
		return err
	}
	yes := func(name string) bool { return r.URL.Query().Get(name) == "true" }
	if c.WasReset != nil && !yes(control.DryRun) {
		defer c.WasReset() // after an error, some objects may have been reset
	}
	var out *control.Result
	switch {
	case yes(control.DryRun):
		d, err := c.Engine.Differs(to, resetOptions)
		if err != nil {
			return err
		}
		out = resultOf(*d)
		out.Revision = c.Engine.Revision()
	case yes(control.Settle):
		if out, err = c.settle(r.Context(), to, settleLimit); err != nil {
			return err
		}
	default:
		if out, err = c.resetOnce(r.Context(), to); err != nil {
			return err
		}
	}
	if out.Rounds > 0 {
		c.Log.Infof("reset to a backup of revision %d: %d objects created again, %d changed back, %d deleted; the revision is now %d",
			to.Revision(), out.Missing, out.Changed, out.Surplus, out.Revision)
	}
	return sendJSON(w, out)
}

// keysTold is the largest number of keys that a result lists.
const keysTold = 100

func resultOf(d datastore.Difference) *control.Result {
	out := &control.Result{Missing: len(d.Missing), Changed: len(d.Changed), Surplus: len(d.Surplus)}
	for _, keys := range [][]string{d.Missing, d.Changed, d.Surplus} {
		out.Keys = append(out.Keys, keys[:min(len(keys), keysTold-len(out.Keys))]...)
	}
	return out
}

// wanted returns the contents to reset to. They come from the body of the request, or from the
// snapshot in the data directory if the body is empty.
func (c *Control) wanted(r *http.Request) (*datastore.Dump, error) {
	if r.ContentLength != 0 {
		s, err := snapshot.Read(r.Body)
		if err != nil {
			return nil, err
		}
		return c.contentsOf(r.Context(), s)
	}
	path := filepath.Join(c.DataDir, snapshot.FileName)
	return c.own.of(path, func() (contents *datastore.Dump, err error) {
		err = snapshot.WithFile(path, func(s *snapshot.Snapshot) (err error) {
			contents, err = c.contentsOf(r.Context(), s)
			return err
		})
		return contents, err
	})
}

func (c *Control) contentsOf(ctx context.Context, s *snapshot.Snapshot) (*datastore.Dump, error) {
	if err := sameCluster(s, c.DataDir); err != nil {
		return nil, err
	}
	return s.Dump(ctx, c.DataDir)
}

// ErrAnotherCluster means that a snapshot was made of another cluster than the one to reset.
var ErrAnotherCluster = errors.New("the backup is of another cluster")

// sameCluster returns [ErrAnotherCluster] unless the snapshot is of the cluster in dataDir or of
// one with the same origin. It compares the keys of their service accounts. With another key,
// tokens in the snapshot's Secrets would not be valid.
func sameCluster(s *snapshot.Snapshot, dataDir string) error {
	name := string(certs.ServiceAccount) + ".key"
	have, err := os.ReadFile(filepath.Join(dataDir, "certs", name))
	if err != nil {
		return err
	}
	if string(have) != string(s.Certificate(name)) {
		return fmt.Errorf("%w: its certs/%s is not that of %s (karve server --fork-from starts a new cluster from it)", ErrAnotherCluster, name, dataDir)
	}
	return nil
}
