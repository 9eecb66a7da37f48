package server

import (
	"fmt"
	"net"
	"strconv"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/server/insecure"
	"github.com/karve-k8s/karve/server/storage"
)

// checkEtcdListen says what is wrong with --etcd-listen beside the other options.
func checkEtcdListen(c Config) error {
	l, err := storage.ParseEtcdListen(c.EtcdListen)
	if err != nil || l == nil {
		return err
	}
	if where, err := c.location(); err == nil && where.Etcd != nil {
		return fmt.Errorf("--etcd-listen %s: the datastore is an etcd, which listens itself: leave the flag out", c.EtcdListen)
	}
	if !l.Secure && !c.ownersKnown() {
		return fmt.Errorf("--etcd-listen %s: %w, so every local user would be an administrator: use https://", c.EtcdListen, insecure.ErrOwnersUnknown)
	}
	return nil
}

// servedEtcd is the listener that claim took for --etcd-listen; nil without one.
func (s *controlPlane) servedEtcd() *storage.EtcdAPI {
	where, _ := storage.ParseEtcdListen(s.EtcdListen)
	if where == nil || s.etcdAPI == nil {
		return nil
	}
	return &storage.EtcdAPI{Listener: s.etcdAPI, URL: s.etcdURL(), Secure: where.Secure, Certificates: func() *certs.Store { return s.certs }}
}

// etcdURL is where clients reach that listener; empty without one.
func (s *controlPlane) etcdURL() string {
	where, _ := storage.ParseEtcdListen(s.EtcdListen)
	if where == nil || s.etcdAPI == nil {
		return ""
	}
	scheme := "http://"
	if where.Secure {
		scheme = "https://"
	}
	address := s.etcdAPI.Addr().(*net.TCPAddr)
	if advertise := advertiseAddress(s.Config); address.IP.IsUnspecified() && advertise != nil { // for other machines
		return scheme + net.JoinHostPort(advertise.String(), strconv.Itoa(address.Port))
	}
	return scheme + localAddress(s.etcdAPI)
}
