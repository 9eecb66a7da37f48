// Package certs makes and maintains the keys, certificates and kubeconfigs of a control
// plane: three authorities, the service account key and six certificates, all in one
// directory, as laid out in https://kubernetes.io/docs/setup/best-practices/certificates/.
// If the etcd API is served on the network, there are an authority and two certificates for
// it too.
//
// Ensure makes what is missing and renews what is due. Store.Renew renews while the server
// runs. Nothing restarts: upstream's loaders read changed files by themselves. The package
// uses the files that a user put there, and never writes to them. Power may fail, and the
// clock may be wrong, at any moment.
//
// The package does not log. It returns Notes: what an administrator should know, and what
// is no reason to stop.
package certs

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/karve-k8s/karve/internal/atomicfile"
)

// Errors that callers can tell apart with errors.Is. The message names the file and the
// remedy. It never contains a part of a key.
var (
	ErrCorrupt      = errors.New("file cannot be used")               // empty, damaged, encrypted, not an authority
	ErrKeyMissing   = errors.New("private key is missing")            // and something has to be signed, or served, with it
	ErrMismatch     = errors.New("certificate and key do not match")  // and Karve may not repair it, because a file is the user's
	ErrCAExpired    = errors.New("certificate authority has expired") // a user's; Karve renews its own
	ErrUserSupplied = errors.New("not made by karve, not renewed")    // ForceRenew of a user's file
	ErrGone         = errors.New("removed while running")             // an authority or the service account key
)

// Config says where the files are and what the serving certificate is for. The
// zero value of every field but Dir is usable.
type Config struct {
	// Dir holds all files, <data-dir>/certs. If it does not exist, it is made with mode
	// 0700. Required.
	Dir string
	// Hostname defaults to os.Hostname(). The serving certificate leaves it out if it is
	// not a DNS name.
	Hostname string
	// ServiceIPs are the addresses of the kubernetes Service, the first of each service
	// range. Pods reach the API server through them.
	ServiceIPs []net.IP
	// ExtraSANs are further IP addresses and DNS names, as ParseSAN takes them.
	ExtraSANs []string
	// ClusterDomain defaults to cluster.local.
	ClusterDomain string
	// InterfaceAddrs lists this machine's addresses. It defaults to those of every
	// interface except kube-ipvs0. Every Renew calls it again.
	InterfaceAddrs func() ([]net.Addr, error)
	// Etcd makes EtcdCA, EtcdServer and EtcdClient too. Once made, they are maintained
	// without it.
	Etcd bool
	// Now defaults to time.Now.
	Now func() time.Time
	// NoSync leaves out fsync, for temporary clusters. A power cut may then leave empty
	// files.
	NoSync bool

	fault func(step, path string) error // see atomicfile.Writer
}

func (c Config) withDefaults() Config {
	if c.Hostname == "" {
		c.Hostname, _ = os.Hostname() // without a name, none is put into the certificate
	}
	if c.ClusterDomain == "" {
		c.ClusterDomain = "cluster.local"
	}
	if c.InterfaceAddrs == nil {
		c.InterfaceAddrs = InterfaceAddrs
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Note is something that an administrator should read. Every call returns it for as long as
// it is true, with the same text. It is comparable, so a caller can keep a set of those it
// has logged.
type Note struct {
	Name    Name // empty: about none of them in particular
	Warning bool // false: for information
	Text    string
}

// String returns "name: text".
func (n Note) String() string {
	if n.Name == "" {
		return n.Text
	}
	return string(n.Name) + ": " + n.Text
}

// Store is a directory of certificates in which Ensure found or made everything. Several
// goroutines may call its methods.
//
// Two processes may renew in the same directory. The first Ensure of a directory must be
// alone; the lock of the data directory ensures that.
type Store struct {
	cfg   Config
	files atomicfile.Writer

	mu      sync.Mutex // held while files are read and written
	nextDue time.Time
	signers map[Name]string // see SignerFile
}

// Ensure makes the missing keys and certificates in cfg.Dir, renews those that are due, and
// returns the store. It reports every problem together, and writes nothing if there is one.
func Ensure(cfg Config) (*Store, []Note, error) { return open(cfg, true) }

// Open is Ensure for a directory that a server has, which may run. As Renew does, it makes no new authority or service account key:
// the cluster would not know it.
func Open(cfg Config) (*Store, []Note, error) { return open(cfg, false) }

func open(cfg Config, starting bool) (*Store, []Note, error) {
	if cfg.Dir == "" {
		return nil, nil, errors.New("no directory for the certificates given")
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, nil, fmt.Errorf("certificates directory %s: %w", cfg.Dir, err)
	}
	cfg.Dir = dir
	s := &Store{cfg: cfg.withDefaults(), files: atomicfile.Writer{NoSync: cfg.NoSync, Fault: cfg.fault}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := makeDir(s.files, dir); err != nil {
		return nil, nil, err
	}
	if starting {
		s.files.Sweep(dir)
	}
	p := s.plan(nil)
	p.starting = starting
	if err := p.run(); err != nil {
		return nil, p.notes, err
	}
	if err := s.apply(p); err != nil {
		return nil, p.notes, err
	}
	return s, p.notes, nil
}

// Renew renews what is due, and returns the names of what it renewed. A certificate is due
// when less than a third of its lifetime is left, when the serving certificate lacks a name
// or an address, and when it does not match its authority or its key. The key stays. The
// new certificate replaces the old one in one step.
//
// Call it no later than NextDue, and every few minutes for addresses that the network
// brings. When nothing is due, it reads the files and writes nothing. An error about one
// certificate does not prevent the renewal of the others. Renew never makes a new authority
// or service account key: if one was removed, the error is ErrGone.
//
// Karve's own authorities are renewed too, with the same name and key, so that what they
// signed stays valid. When renewed contains ServerCA, kubeconfigs that embed it should be
// written again.
func (s *Store) Renew() (renewed []Name, notes []Note, err error) {
	return s.renew(nil)
}

// ForceRenew renews the named certificates even if they are not due, and everything else
// that is due. Without names, it renews every leaf that this package made. An authority
// must be named to be renewed, and keeps its key. Naming the service account key is an
// error, because a new key would invalidate every token. Naming a user's file is
// ErrUserSupplied.
func (s *Store) ForceRenew(names ...Name) (renewed []Name, notes []Note, err error) {
	force := map[Name]bool{}
	for _, n := range names {
		e, ok := lookup(n)
		if !ok {
			_, err := ParseName(string(n))
			return nil, nil, err
		}
		if !e.wanted(s.cfg.Dir, s.cfg.Etcd) {
			return nil, nil, fmt.Errorf("there is no %s: it is made by a server with --etcd-listen", n)
		}
		if e.kind == KindKey {
			return nil, nil, fmt.Errorf("%s is not renewed, as a key has no end; karve certs rotate-ca --service-account-key replaces it", n)
		}
		force[n] = true
	}
	if len(names) == 0 {
		for _, e := range table {
			if e.kind == KindLeaf {
				force[e.name] = false // Karve's own only
			}
		}
	}
	return s.renew(force)
}

func (s *Store) renew(force map[Name]bool) ([]Name, []Note, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.plan(force)
	err := p.run()
	if aerr := s.apply(p); aerr != nil {
		return nil, p.notes, errors.Join(err, aerr)
	}
	return p.renewed, p.notes, err
}

// apply writes the plan. Keys come first, because a key without a certificate can always be
// completed, and a CA's certificate without its key cannot.
func (s *Store) apply(p *plan) error {
	if err := s.files.Write(p.keys...); err != nil {
		return err
	}
	if err := s.files.Write(p.certs...); err != nil {
		return err
	}
	s.nextDue, s.signers = p.nextDue, p.signers
	return nil
}

// CertFile returns the absolute path of a certificate. For an authority, the file is what
// to trust; for a leaf, it has the certificate and its intermediates. ServiceAccount has no
// certificate: the path is empty.
func (s *Store) CertFile(n Name) string {
	if n == ServiceAccount {
		return ""
	}
	return certFile(s.cfg.Dir, n)
}

// KeyFile returns the absolute path of a private key in PEM. It may not exist for a user's
// authority.
func (s *Store) KeyFile(n Name) string { return keyFile(s.cfg.Dir, n) }

// SignerFile returns the path of a file with only the certificate that goes with KeyFile(n), as
// the controller manager's --cluster-signing-cert-file needs it; n is ServerCA or ClientCA.
// Without a key, requests cannot be signed, and the path is empty. It is CertFile(n), unless
// a user put several certificates there.
func (s *Store) SignerFile(n Name) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signers[n]
}

// NextDue returns when something has to be renewed, or the zero time if nothing ever has to
// be. Clocks jump: compare it with the time of day now and then, instead of sleeping until
// it.
func (s *Store) NextDue() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nextDue
}
