package storage

import (
	"context"
	"iter"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/kine/external"
)

// Store writes the first objects of a new cluster; see bootstrap.Store. There is none for a real
// etcd, because it refuses a transaction of that size.
type Store interface {
	Endpoint() string
	Empty(ctx context.Context, prefix string) (bool, error)
	CreateAll(ctx context.Context, prefix string, objects iter.Seq2[string, []byte]) error
}

// engineStore is the Store of the built-in datastore in this process.
type engineStore struct {
	engine   *datastore.Engine
	endpoint string
}

func (s engineStore) Endpoint() string { return s.endpoint }

func (s engineStore) Empty(ctx context.Context, prefix string) (bool, error) {
	for _, r := range objectRanges(prefix) {
		resp, err := s.engine.Range(ctx, datastore.RangeRequest{Key: r[0], End: r[1], CountOnly: true})
		if err != nil || resp.Count > 0 {
			return false, err
		}
	}
	return true, nil
}

// objectRanges are the ranges of all keys that begin with prefix, but for [ClusterRecord].
func objectRanges(prefix string) [2][2]string {
	record := prefix + ClusterRecord
	return [2][2]string{{prefix, record}, {record + "\x00", datastore.PrefixEnd(prefix)}}
}

func (s engineStore) CreateAll(ctx context.Context, prefix string, objects iter.Seq2[string, []byte]) error {
	// No key of the ranges has ever been created.
	var req datastore.TxnRequest
	for _, r := range objectRanges(prefix) {
		req.Compare = append(req.Compare, datastore.Compare{Key: r[0], End: r[1], Target: datastore.CompareCreateRevision})
	}
	for key, value := range objects {
		req.Then = append(req.Then, datastore.Op{Put: &datastore.PutRequest{Key: key, Value: value}})
	}
	_, err := s.engine.Txn(ctx, req)
	return err
}

// databaseStore is the Store of a SQL database. Other servers may be starting with it: one of them writes.
type databaseStore struct {
	backend  *external.Backend
	endpoint string
}

func (s databaseStore) Endpoint() string { return s.endpoint }

func (s databaseStore) Empty(ctx context.Context, prefix string) (bool, error) {
	return s.backend.Empty(ctx, prefix, prefix+ClusterRecord)
}

func (s databaseStore) CreateAll(ctx context.Context, prefix string, objects iter.Seq2[string, []byte]) error {
	return s.backend.CreateAll(ctx, prefix, prefix+ClusterRecord, objects)
}

// etcdStore is the Store of Karve's datastore in another process.
type etcdStore struct {
	client   *clientv3.Client
	endpoint string
}

func (s etcdStore) Endpoint() string { return s.endpoint }

func (s etcdStore) Empty(ctx context.Context, prefix string) (bool, error) {
	resp, err := s.client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	return err == nil && resp.Count == 0, err
}

func (s etcdStore) CreateAll(ctx context.Context, prefix string, objects iter.Seq2[string, []byte]) error {
	var puts []clientv3.Op
	for key, value := range objects {
		puts = append(puts, clientv3.OpPut(key, string(value)))
	}
	none := clientv3.Compare(clientv3.CreateRevision(prefix).WithPrefix(), "=", 0)
	_, err := s.client.Txn(ctx).If(none).Then(puts...).Commit()
	return err
}
