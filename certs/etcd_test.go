package certs

import (
	"os"
	"strings"
	"testing"
)

func TestEtcdCertificatesAreMadeOnDemandAndKept(t *testing.T) {
	b := newTestbed(t)
	s, _ := b.ensure(t)
	for name := range b.files(t) {
		if strings.HasPrefix(name, "etcd-") {
			t.Errorf("%s was made without being asked for", name)
		}
	}
	if _, _, err := s.ForceRenew(EtcdServer); err == nil || !strings.Contains(err.Error(), "--etcd-listen") {
		t.Errorf("renew what is not there: %v, want the flag that makes it", err)
	}

	b.Etcd = true
	s, _ = b.ensure(t)
	b.verify(t, today)
	if cert := b.cert(t, EtcdServer); len(cert.IPAddresses) == 0 {
		t.Error("the server's certificate is for no address")
	}
	if infos, err := List(b.Dir, today); err != nil || len(infos) != len(Names()) {
		t.Errorf("list: %d, %v, want %d", len(infos), err, len(Names()))
	}

	b.Etcd = false // the flag is gone, as it is for `karve certs renew`
	fatal(t, os.Remove(s.CertFile(EtcdClient)))
	s, _ = b.ensure(t)
	b.verify(t, today)
	if renewed, _, err := s.ForceRenew(EtcdServer); err != nil || len(renewed) != 1 {
		t.Errorf("renew: %v, %v", renewed, err)
	}
}
