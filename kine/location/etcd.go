package location

import (
	"context"
	"crypto/tls"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// attempt is the limit of one attempt to connect.
const attempt = 3 * time.Second

// Migrating is the key, under the prefix of the API server's keys, that an etcd has while karve datastore
// migrate fills it.
const Migrating = "karve/migrating"

// EtcdTLS is the configuration of a client with these files; nil if there are none.
func EtcdTLS(caFile, certFile, keyFile string) (*tls.Config, error) {
	files := transport.TLSInfo{CertFile: certFile, KeyFile: keyFile, TrustedCAFile: caFile}
	if files.Empty() && caFile == "" {
		return nil, nil
	}
	return files.ClientConfig()
}

// DialEtcd makes a client, and reads a key that need not exist.
//
// It tries once, and fails with the cause. The client's own Get would wait for a connection until the
// context ends, and report only that. The client outlives ctx.
func DialEtcd(ctx context.Context, endpoints []string, secured *tls.Config, key string) (_ *clientv3.Client, read *etcdserverpb.RangeResponse, err error) {
	client, err := clientv3.New(clientv3.Config{
		Context: context.WithoutCancel(ctx), Endpoints: endpoints, TLS: secured, Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	resp, err := etcdserverpb.NewKVClient(client.ActiveConnection()).Range(ctx, &etcdserverpb.RangeRequest{Key: []byte(key)}, grpc.WaitForReady(false))
	if err != nil {
		client.Close()
		return nil, nil, clientv3.ContextError(ctx, err)
	}
	return client, resp, nil
}
