package etcd

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"go.etcd.io/etcd/api/v3/version"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/kine"
)

// newHandler serves what etcd serves beside gRPC, in etcd's formats
// (server/etcdserver/api/etcdhttp).
func newHandler(engine *datastore.Engine) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		health := struct {
			Health string `json:"health"`
			Reason string `json:"reason"`
		}{Health: "true"}
		excluded := r.URL.Query()["exclude"]
		if err := sound(r, engine); err != nil {
			health.Health, health.Reason = "false", "RANGE ERROR:"+err.Error()
		} else if engine.Stats().NoSpace && !slices.Contains(excluded, "NOSPACE") {
			health.Health, health.Reason = "false", "ALARM NOSPACE"
		}
		text, _ := json.Marshal(health) // two strings
		if health.Health != "true" {
			http.Error(w, string(text), http.StatusServiceUnavailable)
			return
		}
		w.Write(text)
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(version.Versions{Server: kine.EtcdVersion, Cluster: kine.EtcdClusterVersion, Storage: kine.EtcdClusterVersion})
	})
	return mux
}

// sound reports whether the datastore reads and writes.
func sound(r *http.Request, engine *datastore.Engine) error {
	_, err := engine.Range(r.Context(), datastore.RangeRequest{Key: "\x00", End: "\x00", Limit: 1, KeysOnly: true})
	return errors.Join(err, engine.Err())
}
