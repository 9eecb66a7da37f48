package storage

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"

	"github.com/sirupsen/logrus"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/server/insecure"
)

// EtcdListen is the parsed form of --etcd-listen: the address of the etcd API besides its socket.
type EtcdListen struct {
	Secure bool   // with TLS
	Host   string // empty means every address
	Port   int    // 0 means any free port
}

const etcdListenForms = "want https://ADDRESS:PORT, or http:// with a loopback address; https://:2379 is every address, and port 0 any free one"

// ParseEtcdListen parses --etcd-listen. It returns nil if the value is empty.
func ParseEtcdListen(text string) (*EtcdListen, error) {
	if text == "" {
		return nil, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Path != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("--etcd-listen: " + etcdListenForms) // text may contain a password
	}
	l := &EtcdListen{Secure: u.Scheme == "https", Host: u.Hostname()}
	if l.Port, err = strconv.Atoi(u.Port()); err != nil || l.Port > 65535 || u.Scheme != "https" && u.Scheme != "http" {
		return nil, fmt.Errorf("--etcd-listen %s: %s", text, etcdListenForms)
	}
	ip := net.ParseIP(l.Host)
	if l.Host == "localhost" {
		ip = net.IPv4(127, 0, 0, 1)
	}
	switch {
	case ip == nil && l.Host != "":
		return nil, fmt.Errorf("--etcd-listen %s: %q is not an IP address of this machine: %s", text, l.Host, etcdListenForms)
	case !l.Secure && !ip.IsLoopback():
		return nil, fmt.Errorf("--etcd-listen %s: every client that reaches it would be an administrator: use https://, or 127.0.0.1", text)
	}
	return l, nil
}

// EtcdAPI is the bound listener of --etcd-listen.
type EtcdAPI struct {
	Listener     net.Listener
	URL          string // the URL for clients
	Secure       bool
	CertsDir     string              // for TLS: the directory of the certificates
	Certificates func() *certs.Store // for TLS: nil until they are issued
}

// listeners returns the listeners of the etcd API besides its socket.
func (s *Storage) listeners() []kine.Listener {
	e := s.config.EtcdAPI
	if e == nil {
		return nil
	}
	l := kine.Listener{Listener: e.Listener, URL: e.URL}
	if e.Secure {
		l.TLS = etcdTLS(e.Certificates)
		s.config.Log.Infof("serving the etcd API at %s, for clients with %s and its key; they trust %s",
			l.URL, certs.File(e.CertsDir, certs.EtcdClient), certs.File(e.CertsDir, certs.EtcdCA))
	} else {
		l.Listener = insecure.OwnOnly(l.Listener, logrus.NewEntry(s.config.Log))
		s.config.Log.Infof("serving the etcd API at %s, without TLS, for root and the server's own user", l.URL)
	}
	return []kine.Listener{l}
}

// etcdTLS returns a configuration that requires a client certificate of the etcd CA. Every holder
// of such a certificate is an administrator. The configuration reads the files for each connection,
// because they may be renewed while the server runs. Connections are few and long-lived. Clients that
// come before the files are issued have to come again.
func etcdTLS(issued func() *certs.Store) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			store := issued()
			if store == nil {
				return nil, errors.New("the etcd API's certificate is not issued yet")
			}
			own, err := tls.LoadX509KeyPair(store.CertFile(certs.EtcdServer), store.KeyFile(certs.EtcdServer))
			if err != nil {
				return nil, fmt.Errorf("read the etcd API's certificate: %w", err)
			}
			authority, err := os.ReadFile(store.CertFile(certs.EtcdCA))
			if err != nil {
				return nil, fmt.Errorf("read the etcd CA: %w", err)
			}
			trusted := x509.NewCertPool()
			trusted.AppendCertsFromPEM(authority)
			return &tls.Config{
				MinVersion:   tls.VersionTLS12,
				NextProtos:   []string{"h2"},
				Certificates: []tls.Certificate{own},
				ClientAuth:   tls.RequireAndVerifyClientCert,
				ClientCAs:    trusted,
			}, nil
		},
	}
}
