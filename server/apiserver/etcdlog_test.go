package apiserver

import "testing"

func TestEtcdLoggerIsUpstreams(t *testing.T) {
	if etcdLogger == nil {
		t.Fatal("etcdLogger is nil: upstream's init no longer sets factory.etcd3ClientLogger, look for its new name")
	}
}
