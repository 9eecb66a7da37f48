package snapshots

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// DatastoreHandler answers requests about the file of the datastore. While the engine runs, no
// other process can read the file (see DESIGN.md of package datastore). The control socket serves
// the handler as soon as the datastore is open, also while the server starts or stops. engine is
// nil if the datastore is not the built-in one.
func DatastoreHandler(engine *datastore.Engine) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+control.LookPath, tell(func(context.Context) (*sqlitefile.Info, error) { return engine.Info() }))
	mux.HandleFunc("GET "+control.StatsPath, tell(func(ctx context.Context) (*backup.Stats, error) { return backup.ReadStats(ctx, engine.Source()) }))
	mux.HandleFunc("GET "+control.VerifyPath, tell(func(ctx context.Context) (*backup.Verification, error) {
		return backup.Verify(ctx, engine.Source(), nil)
	}))
	if engine == nil {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, notBuiltIn, http.StatusNotImplemented)
		})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The client compares this with the file that it asks about, because another server may
		// use that file.
		w.Header().Set(control.DatastoreHeader, url.PathEscape(engine.Path()))
		mux.ServeHTTP(w, r)
	})
}

// tell returns a handler that sends the result of ask as JSON.
func tell[T any](ask func(context.Context) (*T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		out, err := ask(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out) // a client that went away needs no answer
	}
}
