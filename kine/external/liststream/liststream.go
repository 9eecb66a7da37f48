// Package liststream answers kine's ListStream with what List returns. It is a package of its own, so
// that tests of other packages do not link the drivers of package external.
package liststream

import "github.com/k3s-io/kine/pkg/server"

// Of returns the answer of ListStream for a range that has been read. Nobody has to read its channels.
func Of(revision int64, kvs []*server.KeyValue, err error) server.ListResult {
	keys, errc := make(chan *server.KeyValue, len(kvs)), make(chan error, 1)
	for _, kv := range kvs {
		keys <- kv
	}
	close(keys)
	errc <- err
	return server.ListResult{CurrentRevision: revision, KVc: keys, Errorc: errc}
}
