package replacements

import (
	_ "unsafe" // for go:linkname

	"go.uber.org/zap"
	_ "k8s.io/apiserver/pkg/storage/storagebackend/factory"
)

// etcdLogger is the logger of every etcd client in the chain. Its lines are dropped, because callers get the errors.
// Upstream makes it write to standard error in its init, and offers no way to change that (k8s.io/apiserver
// pkg/storage/storagebackend/factory/etcd3.go). TestEtcdLoggerIsUpstreams fails if upstream
// renames the variable. It is set once, because running servers read it.
//
//go:linkname etcdLogger k8s.io/apiserver/pkg/storage/storagebackend/factory.etcd3ClientLogger
var etcdLogger *zap.Logger

// upstreamsEtcdLogger is upstream's own.
var upstreamsEtcdLogger = etcdLogger

func init() { etcdLogger = zap.NewNop() }
