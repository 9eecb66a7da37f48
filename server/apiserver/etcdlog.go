package apiserver

import (
	_ "unsafe" // for go:linkname

	"go.uber.org/zap"
	_ "k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/karve-k8s/karve/internal/logbridge"
)

// etcdLogger is the logger of every etcd client in the chain. Upstream makes it write to
// standard error in its init, and offers no way to change that (k8s.io/apiserver
// pkg/storage/storagebackend/factory/etcd3.go). TestEtcdLoggerIsUpstreams fails if upstream
// renames the variable. It is set once, because running servers read it.
//
//go:linkname etcdLogger k8s.io/apiserver/pkg/storage/storagebackend/factory.etcd3ClientLogger
var etcdLogger *zap.Logger

// upstreamsEtcdLogger is upstream's own.
var upstreamsEtcdLogger = etcdLogger

func init() { etcdLogger = logbridge.Zap("etcd") }
