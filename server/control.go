package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/servertest/process/control"
	"github.com/karve-k8s/karve/snapshot"
	"github.com/karve-k8s/karve/socket"
)

// controlAPI is what `karve snapshot` and `karve reset` ask, on a socket in the data
// directory (package control has the client).
type controlAPI struct {
	*controlPlane
	engine *datastore.Engine // nil: the datastore is the user's own

	one      sync.Mutex // one reset at a time
	own      *datastore.Contents
	ownFile  os.FileInfo // that own was read from
	handling sync.WaitGroup
}

// serveControl serves it until stop is called, which waits for what is under way.
func (s *controlPlane) serveControl(engine *datastore.Engine) (stop func(), err error) {
	listener, err := socket.Listen(s.DataDir, control.Socket)
	if errors.Is(err, socket.ErrMissing) {
		return func() {}, nil // as without kine.sock
	} else if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	a := &controlAPI{controlPlane: s, engine: engine}
	if err := os.RemoveAll(a.scratch()); err != nil { // of a server that was killed
		listener.Close()
		return nil, fmt.Errorf("control socket: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+control.SnapshotPath, a.answer(a.snapshot))
	mux.HandleFunc("POST "+control.ResetPath, a.answer(a.reset))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	a.handling.Go(func() { _ = server.Serve(listener) }) // its end is ours
	return func() {
		server.Close()
		a.handling.Wait()
		os.RemoveAll(a.scratch()) // the next start tries again
	}, nil
}

// scratch is a directory for what is made on the way, which answer makes.
func (a *controlAPI) scratch() string { return a.path(".control") }

// answer refuses what cannot be done and makes answers of errors.
func (a *controlAPI) answer(do func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a.handling.Add(1)
		defer a.handling.Done()
		switch {
		case a.engine == nil:
			http.Error(w, "the datastore of this server is not the built-in one (--datastore-endpoint): use its own tools", http.StatusNotImplemented)
		case !a.up.Load():
			http.Error(w, "the server is not ready yet", http.StatusServiceUnavailable)
		default:
			err := os.MkdirAll(a.scratch(), 0o700)
			if err == nil {
				err = do(w, r)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			}
		}
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
		if out, err = settle(r.Context(), a.engine, to); err != nil {
			return err
		}
	default:
		done, err := resetAtRest(r.Context(), a.engine, to)
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
// snapshot in the data directory, which are kept in memory for the next time.
func (a *controlAPI) wanted(r *http.Request) (*datastore.Contents, error) {
	if r.ContentLength != 0 {
		s, err := snapshot.Read(r.Body)
		if err != nil {
			return nil, err
		}
		return a.contentsOf(r.Context(), s)
	}
	path := a.path(snapshot.FileName)
	file, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("%w: there is no snapshot yet", err)
	}
	if a.own != nil && os.SameFile(file, a.ownFile) && file.Size() == a.ownFile.Size() && file.ModTime().Equal(a.ownFile.ModTime()) {
		return a.own, nil
	}
	err = snapshot.WithFile(path, func(s *snapshot.Snapshot) (err error) {
		a.own, err = a.contentsOf(r.Context(), s)
		a.ownFile = file
		return err
	})
	return a.own, err
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
