// Package inprocess is the etcd client of a datastore that the same process serves. It is
// what Kubernetes' API server gets instead of a connection: its calls are function calls,
// without a socket, gRPC or marshalling.
package inprocess

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// NewClient makes a client of the datastore that has been registered as url
// ([Endpoint.URL]). The client has what the API server uses of an etcd client, and no
// more: Auth and Cluster are nil.
//
// A client is little more than a pointer; make one for each user. Close ends the
// watches of that client only. The caller must not change the values it gets.
func NewClient(url string) (*kubernetes.Client, error) {
	e, err := find(url)
	if err != nil {
		return nil, err
	}
	client := clientv3.NewCtxClient(e.ctx)
	setField(client, "endpoints", []string{url}) // SetEndpoints needs a connection
	client.KV = kv{clientv3.NewKVFromKVClient(kvCalls{pb.NewKVClient(unserved{}), e.api}, client), e}
	client.Lease = clientv3.NewLeaseFromLeaseClient(leaseCalls{pb.NewLeaseClient(unserved{}), e}, client, 0)
	client.Maintenance = clientv3.NewMaintenanceFromMaintenanceClient(maintenanceCalls{pb.NewMaintenanceClient(unserved{}), e.api}, client)
	watcher := newWatcher(e)
	client.Watcher = watcher
	return &kubernetes.Client{Client: client, Kubernetes: e.store.Client(watcher.tell)}, nil
}
