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

// Store is the datastore, below what the API server knows of it.
type Store interface {
	// Endpoint is where the API server finds it.
	Endpoint() string
	// Empty tells whether no key begins with prefix.
	Empty(ctx context.Context, prefix string) (bool, error)
	// CreateAll writes all of objects, which are keys with their values, in one
	// transaction, or none of them if the store is no longer empty.
	CreateAll(ctx context.Context, prefix string, objects iter.Seq2[string, []byte]) error
}

// Seed writes the objects of a new cluster if the store is that of one, and says
// how many they are. It does not write those that are stored elsewhere
// (--etcd-servers-overrides): upstream makes them.
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
