package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/internal/socket"
	"github.com/karve-k8s/karve/snapshot"
)

// controlAPI is what `karve snapshot`, `karve reset` and `karve datastore` ask, on a socket
// in the data directory (package control has the client).
type controlAPI struct {
	*controlPlane
	engine *datastore.Engine // nil: the datastore is the user's own

	one sync.Mutex // one reset at a time
	own ownContents
}

// serveControl serves the control socket until stop is called, which returns when no
// request uses the engine any more.
func (s *controlPlane) serveControl(engine *datastore.Engine) (stop func(), err error) {
	door, err := listenControl(s.DataDir)
	if errors.Is(err, socket.ErrMissing) {
		return func() {}, nil // as without kine.sock
	} else if err != nil {
		return nil, err
	}
	a := &controlAPI{controlPlane: s, engine: engine}
	if err := os.RemoveAll(a.scratch()); err != nil { // of a server that was killed
		door.stop()
		return nil, fmt.Errorf("control socket: %w", err)
	}
	door.handle("GET "+control.SnapshotPath, a.ready(a.snapshot))
	door.handle("POST "+control.ResetPath, a.ready(a.reset))
	door.handle("/datastore/", func(w http.ResponseWriter, r *http.Request) error {
		DatastoreHandler(engine).ServeHTTP(w, r)
		return nil
	})
	door.serve()
	return func() {
		door.stop()
		a.own.forget()
		os.RemoveAll(a.scratch()) // the next start tries again
	}, nil
}

// scratch is a directory for what is made on the way, which ready makes.
func (a *controlAPI) scratch() string { return a.path(".control") }

// notBuiltIn is the answer where there is no engine.
const notBuiltIn = "the datastore of this server is not the built-in one (--datastore-endpoint): use its own tools"

// ready refuses what cannot be done now, or with this datastore.
func (a *controlAPI) ready(do controlHandler) controlHandler {
	return func(w http.ResponseWriter, r *http.Request) error {
		switch {
		case a.engine == nil:
			return controlError{http.StatusNotImplemented, notBuiltIn}
		case !a.up.Load():
			return controlError{http.StatusServiceUnavailable, "the server is not ready yet"}
		}
		if err := os.MkdirAll(a.scratch(), 0o700); err != nil {
			return err
		}
		return do(w, r)
	}
}

func (a *controlAPI) source() snapshot.Source {
	return snapshot.Source{DataDir: a.DataDir, Backup: func(ctx context.Context, to string) (*datastore.Copy, error) {
		return a.engine.Backup(ctx, to, datastore.BackupOptions{})
	}}
}

// restLimit is how long a snapshot waits for a cluster to come to rest.
const restLimit = 5 * time.Second

// snapshot answers one. It is made as a whole first: an answer that has begun cannot
// become an error.
func (a *controlAPI) snapshot(w http.ResponseWriter, r *http.Request) error {
	if r.URL.Query().Get(control.Settle) == "true" {
		ctx, cancel := context.WithTimeout(r.Context(), restLimit)
		_ = waitQuiet(ctx, a.engine, func() (bool, error) { return true, nil }) // or as it is
		cancel()
	}
	f, err := os.CreateTemp(a.scratch(), "snapshot-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := snapshot.Write(r.Context(), a.source(), a.scratch(), f); err != nil {
		return err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-tar")
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	_, _ = io.Copy(w, f) // whoever went away needs no answer
	return nil
}

// reset goes back to a snapshot: forwards, so nothing restarts and no client is cut off.
func (a *controlAPI) reset(w http.ResponseWriter, r *http.Request) error {
	a.one.Lock()
	defer a.one.Unlock()
	to, err := a.wanted(r)
	if err != nil {
		return err
	}
	o := others{a.forgetAbsent, func(ctx context.Context, done *datastore.ResetResult) error {
		return a.awaitInformers(ctx, a.engine, done)
	}}
	yes := func(name string) bool { return r.URL.Query().Get(name) == "true" }
	var out *control.Result
	switch {
	case yes(control.DryRun):
		d, err := a.engine.Differs(to, resetOptions)
		if err != nil {
			return err
		}
		out = resultOf(*d)
		out.Revision = a.engine.Revision()
	case yes(control.Settle):
		if out, err = settle(r.Context(), a.engine, to, o); err != nil {
			return err
		}
	default:
		done, err := resetAtRest(r.Context(), a.engine, to, o)
		if err != nil {
			return err
		}
		out = resultOf(done.Difference)
		out.Revision, out.Rounds, out.Took = done.Revision, 1, done.Took
	}
	if out.Rounds > 0 {
		a.log.Infof("went back to a snapshot of revision %d: %d objects made again, %d changed back, %d deleted; the revision is %d",
			to.Revision(), out.Missing, out.Changed, out.Surplus, out.Revision)
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(out)
}

// keysTold is how many keys a result names.
const keysTold = 100

func resultOf(d datastore.Difference) *control.Result {
	out := &control.Result{Missing: len(d.Missing), Changed: len(d.Changed), Surplus: len(d.Surplus)}
	for _, keys := range [][]string{d.Missing, d.Changed, d.Surplus} {
		out.Keys = append(out.Keys, keys[:min(len(keys), keysTold-len(out.Keys))]...)
	}
	return out
}

// wanted are the contents to go back to: those that come with the request, or of the
// snapshot in the data directory.
func (a *controlAPI) wanted(r *http.Request) (*datastore.Contents, error) {
	if r.ContentLength != 0 {
		s, err := snapshot.Read(r.Body)
		if err != nil {
			return nil, err
		}
		return a.contentsOf(r.Context(), s)
	}
	path := a.path(snapshot.FileName)
	return a.own.of(path, func() (contents *datastore.Contents, err error) {
		err = snapshot.WithFile(path, func(s *snapshot.Snapshot) (err error) {
			contents, err = a.contentsOf(r.Context(), s)
			return err
		})
		return contents, err
	})
}

func (a *controlAPI) contentsOf(ctx context.Context, s *snapshot.Snapshot) (*datastore.Contents, error) {
	if err := SameCluster(s, a.DataDir); err != nil {
		return nil, err
	}
	return s.Contents(ctx, a.scratch())
}

// ErrAnotherCluster: a snapshot is not of the cluster that is to go back to it.
var ErrAnotherCluster = errors.New("the snapshot is of another cluster")

// SameCluster is [ErrAnotherCluster] if a snapshot is not of the cluster in dataDir or
// of one that it shares its origin with, by the key of their service accounts: tokens
// in its Secrets would not be valid.
func SameCluster(s *snapshot.Snapshot, dataDir string) error {
	name := string(certs.ServiceAccount) + ".key"
	have, err := os.ReadFile(certsPath(dataDir, name))
	if err != nil {
		return err
	}
	if string(have) != string(s.Certificate(name)) {
		return fmt.Errorf("%w: its certs/%s is not that of %s (karve server --fork-from starts a cluster of it)", ErrAnotherCluster, name, dataDir)
	}
	return nil
}
