package apiserver

import (
	"context"
	"iter"

	"github.com/karve-k8s/karve/bootstrap"
	"github.com/karve-k8s/karve/internal/version"
)

// LastWritten is the key, below the API server's prefix, of the version of Kubernetes that used the
// datastore last. It is among the objects, so that backups, snapshots and resets take it with them.
const LastWritten = "karve/kubernetes-version"

// recordedStore also writes the version of Kubernetes among the first objects of a new cluster.
type recordedStore struct{ bootstrap.Store }

// CreateAll implements [bootstrap.Store].
func (s recordedStore) CreateAll(ctx context.Context, prefix string, objects iter.Seq2[string, []byte]) error {
	return s.Store.CreateAll(ctx, prefix, func(yield func(string, []byte) bool) {
		for key, value := range objects {
			if !yield(key, value) {
				return
			}
		}
		yield(prefix+LastWritten, []byte(version.Kubernetes))
	})
}
