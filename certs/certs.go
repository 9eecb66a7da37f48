// Package certs makes and keeps the keys, certificates and kubeconfigs of a
// control plane: three authorities, the service account key and six
// certificates, all in one directory, as laid out in
// https://kubernetes.io/docs/setup/best-practices/certificates/; and if the etcd
// API is served, an authority and two certificates for that.
//
// Ensure makes what is missing and renews what is due; Store.Renew does the
// same while the server runs. Nothing restarts: upstream's loaders read changed
// files by themselves. Files that a user put there are used and never written
// to. Power may fail, and the clock may be wrong, at any moment.
//
// The package does not log. What a person should know, but need not stop for,
// comes back as Notes.
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

// The errors that callers can tell apart with errors.Is. The message names the
// file and says what to do; it never contains a part of a key.
var (
	ErrCorrupt      = errors.New("file cannot be used")               // empty, damaged, encrypted, not an authority
	ErrKeyMissing   = errors.New("private key is missing")            // and something has to be signed, or served, with it
	ErrMismatch     = errors.New("certificate and key do not match")  // only where it is not ours to put right
	ErrCAExpired    = errors.New("certificate authority has expired") // a user's; our own are renewed
	ErrUserSupplied = errors.New("not made by karve, not renewed")    // ForceRenew of a user's file
	ErrGone         = errors.New("removed while running")             // an authority or the service account key
)

// Config says where the files are and what the serving certificate is for. The
// zero value of every field but Dir is usable.
type Config struct {
	// Dir holds all files, <data-dir>/certs. It is made, with mode 0700, if it
	// is not there. Required.
	Dir string
	// Hostname defaults to os.Hostname(). It is not made a name of the serving
	// certificate if it is not a DNS name.
	Hostname string
	// ServiceIPs are the addresses of the kubernetes Service, the first of each
	// service range. Pods reach the API server by them.
	ServiceIPs []net.IP
	// ExtraSANs are further IP addresses and DNS names, as ParseSAN takes them.
	ExtraSANs []string
	// ClusterDomain defaults to cluster.local.
	ClusterDomain string
	// InterfaceAddrs lists this machine's addresses. It defaults to those of
	// every interface but kube-ipvs0, and is called again by every Renew.
	InterfaceAddrs func() ([]net.Addr, error)
	// Etcd makes EtcdCA, EtcdServer and EtcdClient too. Once made, they are kept
	// up without it.
	Etcd bool
	// Now defaults to time.Now.
	Now func() time.Time
	// NoSync leaves out fsync, for clusters that are thrown away. After a power
	// cut, files may then be empty.
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
		c.InterfaceAddrs = interfaceAddrs
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Note is something a person should read. It comes back from every call for as
// long as it is true, with the same text, and is comparable: a caller can keep
// a set of those it has logged.
type Note struct {
	Name    Name // empty: about none in particular
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

// Store is a directory of certificates in which Ensure found or made
// everything. Its methods may be called from several goroutines.
//
// Two processes may renew in the same directory; the first Ensure of a
// directory must be alone, which the lock on the data directory is for.
type Store struct {
	cfg   Config
	files atomicfile.Writer

	mu      sync.Mutex // held while files are read and written
	nextDue time.Time
	signer  string // see SignerFile
}

// Ensure makes the missing keys and certificates of cfg.Dir, renews those that
// are due, and returns the store. It reports every problem at once, and writes
// nothing if there is one.
func Ensure(cfg Config) (*Store, []Note, error) {
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
	s.files.Sweep(dir)
	p := s.plan(nil)
	p.starting = true
	if err := p.run(); err != nil {
		return nil, p.notes, err
	}
	if err := s.apply(p); err != nil {
		return nil, p.notes, err
	}
	return s, p.notes, nil
}

// Renew renews what is due and returns the names of it. A certificate is due
// when less than a third of its life is left, when the serving certificate
// lacks a name or an address, and when it does not match its authority or key.
// The key is kept; the new certificate takes the place of the old in one step.
//
// Call it no later than NextDue, and every few minutes for addresses that come
// with the network; when nothing is due it reads the files and writes nothing.
// An error about one certificate does not keep the others from being renewed.
// Authorities and the service account key are never made anew by it: if one has
// been removed, the error is ErrGone.
//
// Our own authorities are renewed too, with the same name and key, so that what
// they signed stays valid. When ServerCA is in renewed, kubeconfigs that embed
// it should be written again.
func (s *Store) Renew() (renewed []Name, notes []Note, err error) {
	return s.renew(nil)
}

// ForceRenew renews the named certificates whether they are due or not, and
// everything else that is due; without names, every leaf made by this package.
// An authority must be named to be renewed, and keeps its key. It is an error
// to name the service account key, which would take every token's validity with
// it, or a file that a user put there (ErrUserSupplied).
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
			return nil, nil, fmt.Errorf("%s is not renewed, every token would become invalid; to do that, stop the server and remove %s", n, s.KeyFile(n))
		}
		force[n] = true
	}
	if len(names) == 0 {
		for _, e := range table {
			if e.kind == KindLeaf {
				force[e.name] = false // ours only
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

// apply writes what is planned: keys first, because a key without a certificate
// can always be completed, and a CA's certificate without its key cannot.
func (s *Store) apply(p *plan) error {
	if err := s.files.Write(p.keys...); err != nil {
		return err
	}
	if err := s.files.Write(p.certs...); err != nil {
		return err
	}
	s.nextDue, s.signer = p.nextDue, p.signer
	return nil
}

// CertFile returns the absolute path of a certificate: of an authority, what to
// trust; of a leaf, the certificate and its intermediates. ServiceAccount has
// none, and gets the empty string.
func (s *Store) CertFile(n Name) string {
	if n == ServiceAccount {
		return ""
	}
	return certFile(s.cfg.Dir, n)
}

// KeyFile returns the absolute path of a private key in PEM. A user's authority
// may not have one.
func (s *Store) KeyFile(n Name) string { return keyFile(s.cfg.Dir, n) }

// SignerFile returns the path of a file with nothing but the certificate that
// goes with KeyFile(ClientCA), as the controller manager's
// --cluster-signing-cert-file wants it, or "" if there is no key and requests
// cannot be signed. It is CertFile(ClientCA) unless a user put a chain there.
func (s *Store) SignerFile() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signer
}

// NextDue returns when something has to be renewed, or the zero time if nothing
// ever has. Clocks jump: compare with the time of day now and then rather than
// sleeping until it.
func (s *Store) NextDue() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nextDue
}
