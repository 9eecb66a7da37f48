package kine

import (
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// NewClient is a client of a backend that this process serves, by the endpoint of
// [Shim.LocalEndpoint]. Its calls are function calls: no socket, no gRPC, nothing
// is marshalled. It is what the API server asks of an etcd client, and no more:
// Auth and Cluster are nil.
//
// A client is little more than a pointer; make one for each user. Close ends the
// watches of that one only. Values that it answers must not be changed.
func NewClient(endpoint string) (*kubernetes.Client, error) {
	l, err := find(endpoint)
	if err != nil {
		return nil, err
	}
	client := clientv3.NewCtxClient(l.ctx)
	setField(client, "endpoints", []string{endpoint}) // SetEndpoints needs a connection
	client.KV = clientv3.NewKVFromKVClient(localKV{l}, client)
	client.Lease = clientv3.NewLeaseFromLeaseClient(localLease{l}, client, 0)
	client.Maintenance = clientv3.NewMaintenanceFromMaintenanceClient(localMaintenance{l}, client)
	watcher := newWatcher(l)
	client.Watcher = watcher
	return &kubernetes.Client{Client: client, Kubernetes: l.store.client(watcher)}, nil
}
