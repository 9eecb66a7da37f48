package apiserver

import (
	_ "unsafe" // for go:linkname

	"go.uber.org/zap"
	_ "k8s.io/apiserver/pkg/storage/storagebackend/factory"
)

// etcdLogger is the log of every etcd client that the chain makes. Upstream
// points it at standard error in its init and offers no way to change that
// (k8s.io/apiserver pkg/storage/storagebackend/factory/etcd3.go).
// TestEtcdLoggerIsUpstreams fails when it is renamed.
//
//go:linkname etcdLogger k8s.io/apiserver/pkg/storage/storagebackend/factory.etcd3ClientLogger
var etcdLogger *zap.Logger
