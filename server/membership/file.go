package membership

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// File returns a client that reads the newest keys of a database of the engine which no server uses. It
// can only Get. While a server uses the file, the error is [sqlitefile.ErrBusy].
func File(path string) clientv3.KV { return fileKV{path: path} }

type fileKV struct {
	clientv3.KV
	path string
}

func (f fileKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	op := clientv3.OpGet(key, opts...)
	found := &clientv3.GetResponse{}
	enough := errors.New("enough")
	err := sqlitefile.View(f.path, func(c *sqlitefile.Connection) error {
		err := c.Newest(key, string(op.RangeBytes()), func(r sqlitefile.Row, value []byte) error {
			found.Kvs = append(found.Kvs, &mvccpb.KeyValue{Key: []byte(r.Key), ModRevision: r.Revision(), CreateRevision: r.Create, Version: r.Version, Value: value})
			if n := op.Limit(); n > 0 && int64(len(found.Kvs)) >= n {
				return enough
			}
			return ctx.Err()
		})
		if errors.Is(err, enough) {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	found.Count = int64(len(found.Kvs))
	return found, nil
}
