package server

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

// etcdListen is what --etcd-listen says.
type etcdListen struct {
	secure bool
	host   string
	port   int
}

const etcdListenForms = "want https://ADDRESS:PORT, or http:// with a loopback address; https://:2379 is every address, and port 0 any free one"

// parseEtcdListen reads --etcd-listen; nil is no listener.
func parseEtcdListen(text string) (*etcdListen, error) {
	if text == "" {
		return nil, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Path != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("--etcd-listen: " + etcdListenForms) // it may hold a password
	}
	l := &etcdListen{secure: u.Scheme == "https", host: u.Hostname()}
	if l.port, err = strconv.Atoi(u.Port()); err != nil || l.port > 65535 || u.Scheme != "https" && u.Scheme != "http" {
		return nil, fmt.Errorf("--etcd-listen %s: %s", text, etcdListenForms)
	}
	ip := net.ParseIP(l.host)
	if l.host == "localhost" {
		ip = net.IPv4(127, 0, 0, 1)
	}
	switch {
	case ip == nil && l.host != "":
		return nil, fmt.Errorf("--etcd-listen %s: %q is not an IP address of this machine: %s", text, l.host, etcdListenForms)
	case !l.secure && !ip.IsLoopback():
		return nil, fmt.Errorf("--etcd-listen %s: whoever reached it would be an administrator: use https://, or 127.0.0.1", text)
	}
	return l, nil
}

// checkEtcdListen says what is wrong with --etcd-listen beside the other options.
func checkEtcdListen(c Config) error {
	l, err := parseEtcdListen(c.EtcdListen)
	if err != nil || l == nil {
		return err
	}
	if where, err := parseEndpoint(c.DatastoreEndpoint); err == nil && where.etcd != nil {
		return fmt.Errorf("--etcd-listen %s: the datastore is an etcd, which listens itself: leave the flag out", c.EtcdListen)
	}
	if !l.secure && !c.ownersKnown() {
		return fmt.Errorf("--etcd-listen %s: %w, so every local user would be an administrator: use https://", c.EtcdListen, insecure.ErrOwnersUnknown)
	}
	return nil
}

// etcdListeners are where the datastore is served beyond its socket: on the
// listener that claim took, if any.
func (s *controlPlane) etcdListeners() []kine.Listener {
	if s.etcdAPI == nil {
		return nil
	}
	l := kine.Listener{Listener: s.etcdAPI, URL: s.etcdURL()}
	if where, _ := parseEtcdListen(s.EtcdListen); where.secure {
		l.TLS = etcdTLS(s.certs)
		s.log.Infof("serving the etcd API at %s, for clients with %s and its key; they trust %s",
			l.URL, s.certs.CertFile(certs.EtcdClient), s.certs.CertFile(certs.EtcdCA))
	} else {
		l.Listener = insecure.OwnOnly(l.Listener, logrus.NewEntry(s.log))
		s.log.Infof("serving the etcd API at %s, without TLS, for root and the server's own user", l.URL)
	}
	return []kine.Listener{l}
}

// etcdURL is where clients reach that listener; empty without one.
func (s *controlPlane) etcdURL() string {
	where, _ := parseEtcdListen(s.EtcdListen)
	if where == nil || s.etcdAPI == nil {
		return ""
	}
	scheme := "http://"
	if where.secure {
		scheme = "https://"
	}
	address := s.etcdAPI.Addr().(*net.TCPAddr)
	if address.IP.IsUnspecified() && s.advertise != nil { // for other machines
		return scheme + net.JoinHostPort(s.advertise.String(), strconv.Itoa(address.Port))
	}
	return scheme + localAddress(s.etcdAPI)
}

// etcdTLS asks for a certificate of the etcd authority, whose every holder is an
// administrator. The files are read for each connection, as they are renewed
// while the server runs; there are few connections, and they last.
func etcdTLS(store *certs.Store) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			own, err := tls.LoadX509KeyPair(store.CertFile(certs.EtcdServer), store.KeyFile(certs.EtcdServer))
			if err != nil {
				return nil, fmt.Errorf("read the etcd API's certificate: %w", err)
			}
			authority, err := os.ReadFile(store.CertFile(certs.EtcdCA))
			if err != nil {
				return nil, fmt.Errorf("read the etcd authority: %w", err)
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
