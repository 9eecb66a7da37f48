package apiserver

import (
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"go.uber.org/zap"

	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
)

func TestEtcdLoggerIsUpstreams(t *testing.T) {
	if upstreamsEtcdLogger == nil {
		t.Fatal("etcdLogger is nil: upstream's init no longer sets factory.etcd3ClientLogger, look for its new name")
	}
}

// A server that starts beside another one leaves what that reads: the logger stays, and writes to the log
// of the newer server.
func TestEtcdLoggerStays(t *testing.T) {
	defer logEtcd(nil)
	logger := etcdLogger
	child := logger.With(zap.String("endpoint", "one"))
	var texts [2]strings.Builder
	for i := range texts {
		prepareProcess(&logrus.Logger{Out: &texts[i], Formatter: &logrus.TextFormatter{DisableColors: true}, Level: logrus.InfoLevel})
		if etcdLogger != logger {
			t.Fatal("a start has replaced the logger")
		}
		child.Warn("cannot reach it", zap.Int("try", i))
	}
	for i, text := range texts {
		if got := text.String(); strings.Count(got, "cannot reach it") != 1 || !strings.Contains(got, "endpoint=one") || !strings.Contains(got, "component=etcd") {
			t.Errorf("log %d: %s", i, got)
		}
	}
	prepareProcess(nil)
	child.Warn("dropped")
	if strings.Contains(texts[1].String(), "dropped") {
		t.Error("a server without a log has written to that of another")
	}
}

// The interval of upstream's is as it was when a server has been built.
func TestIdentityIntervalStays(t *testing.T) {
	upstreams := controlplaneapiserver.IdentityLeaseRenewIntervalPeriod
	for _, rarely := range []bool{true, false} {
		renewIdentity(rarely, func() {
			if got := controlplaneapiserver.IdentityLeaseRenewIntervalPeriod; (got > upstreams) != rarely {
				t.Errorf("rarely %v: %v, upstream's is %v", rarely, got, upstreams)
			}
		})
		if got := controlplaneapiserver.IdentityLeaseRenewIntervalPeriod; got != upstreams {
			t.Errorf("got %v afterwards, want %v", got, upstreams)
		}
	}
}
