package bootstrap

import (
	"context"
	"fmt"
	"path"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/core"
)

// KeyValue is an object as it is stored.
type KeyValue struct {
	Key   string
	Value []byte
}

// Store is the datastore, below what the API server knows of it.
type Store interface {
	// Endpoint is where the API server finds it.
	Endpoint() string
	// Empty tells whether no key begins with prefix.
	Empty(ctx context.Context, prefix string) (bool, error)
	// CreateAll writes all of objects at once, or none of them if the store is
	// no longer empty.
	CreateAll(ctx context.Context, prefix string, objects []KeyValue) error
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
	if err := store.CreateAll(ctx, prefix, objects); err != nil {
		return 0, fmt.Errorf("write the objects of a new cluster: %w", err)
	}
	return len(objects), nil
}
