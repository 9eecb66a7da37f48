package apiserver

import (
	"sync/atomic"
	_ "unsafe" // for go:linkname

	"github.com/sirupsen/logrus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
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

func init() { etcdLogger = zap.New(etcdCore{}) }

// etcdLog is where the etcd clients of this process log: to the log of the server that started last.
var etcdLog atomic.Pointer[zap.Logger]

// logEtcd sets where the etcd clients log. With nil, their lines are dropped.
func logEtcd(log *logrus.Logger) {
	if log == nil {
		etcdLog.Store(nil)
		return
	}
	etcdLog.Store(logbridge.Zap(log, "etcd"))
}

// etcdCore passes on events to etcdLog.
type etcdCore struct{ fields []zapcore.Field }

func (c etcdCore) core() zapcore.Core {
	if log := etcdLog.Load(); log != nil {
		return log.Core().With(c.fields)
	}
	return zapcore.NewNopCore()
}

func (c etcdCore) Enabled(l zapcore.Level) bool { return c.core().Enabled(l) }

func (c etcdCore) With(fields []zapcore.Field) zapcore.Core {
	return etcdCore{append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

func (c etcdCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return c.core().Check(e, ce)
}

func (c etcdCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	return c.core().Write(e, fields)
}

func (c etcdCore) Sync() error { return c.core().Sync() }
