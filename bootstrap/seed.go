package bootstrap

import (
	"context"
	"fmt"
	"iter"
	"path"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/core"
)

// keyValue is an object as it is stored.
type keyValue struct {
	key   string
	value []byte
}

// Store is the datastore, seen from below the API server.
type Store interface {
	// Endpoint is the address at which the API server reaches it.
	Endpoint() string
	// Empty reports whether no key begins with prefix.
	Empty(ctx context.Context, prefix string) (bool, error)
	// CreateAll writes all of objects, keys with their values, in one transaction. If the store
	// is no longer empty, it writes none.
	CreateAll(ctx context.Context, prefix string, objects iter.Seq2[string, []byte]) error
}

// Seed writes the first objects if the store is that of a new cluster, and returns their
// number. It does not write objects that are stored elsewhere (--etcd-servers-overrides);
// upstream makes them.
func (c *Config) Seed(ctx context.Context, store Store) (int, error) {
	options, err := c.kube.GetRESTOptions(schema.GroupResource{Resource: "namespaces"}, &core.Namespace{})
	if err != nil {
		return 0, fmt.Errorf("find where objects are stored: %w", err)
	}
	prefix := path.Join("/", options.StorageConfig.Prefix) + "/"
	if empty, err := store.Empty(ctx, prefix); err != nil || !empty {
		return 0, err
	}
	objects, err := c.encode(ctx, store.Endpoint())
	if err != nil {
		return 0, err
	}
	if err := store.CreateAll(ctx, prefix, pairs(objects)); err != nil {
		return 0, fmt.Errorf("write the objects of a new cluster: %w", err)
	}
	return len(objects), nil
}

func pairs(objects []keyValue) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for _, o := range objects {
			if !yield(o.key, o.value) {
				return
			}
		}
	}
}
