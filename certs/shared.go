package certs

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/destination"
)

// Shared is what all servers of a cluster have in common: its authorities and the service account
// key. Everything else in the directory is one server's, and signed by these. The etcd API's
// authority is one server's, too: its clients are those of that server's datastore.
type Shared map[Name]Pair

// Pair is one of them, as PEM. A user's authority may have no key, and the service account key has
// no certificate.
type Pair struct {
	Cert []byte `json:"cert,omitempty"`
	Key  []byte `json:"key,omitempty"`
}

// shared reports whether e is a part of [Shared].
func (e entry) shared() bool { return e.kind != KindLeaf && !e.etcd }

// SharedNames returns the names in a complete [Shared].
func SharedNames() (names []Name) {
	for _, e := range table {
		if e.shared() {
			names = append(names, e.name)
		}
	}
	return names
}

// pair returns what s has of e.
func (s Shared) pair(e entry) (*pair, error) {
	p := &pair{entry: e, certFile: string(e.name) + ".crt", keyFile: string(e.name) + ".key"}
	return p, p.parse(s[e.name].Cert, s[e.name].Key)
}

// ReadShared returns those that dir has. dir need not exist.
func ReadShared(dir string) (Shared, error) {
	all := Shared{}
	var errs []error
	for _, e := range table {
		if !e.shared() {
			continue
		}
		c, err := loadPair(dir, e)
		errs = append(errs, err)
		if err == nil && c.public() != nil {
			all[e.name] = Pair{Cert: c.certPEM, Key: c.keyPEM}
		}
	}
	return all, errors.Join(errs...)
}

// MakeShared returns those that cfg.Dir has, and new ones in place of the others. It writes
// nothing.
func MakeShared(cfg Config) (Shared, error) {
	s := &Store{cfg: cfg.withDefaults()}
	p := s.plan(nil)
	p.starting = true
	all := Shared{}
	var errs []error
	for _, e := range table {
		if !e.shared() {
			continue
		}
		c, err := loadPair(cfg.Dir, e)
		if err == nil && e.kind == KindCA {
			err = p.authority(c)
		} else if err == nil {
			err = p.signingKey(c)
		}
		errs = append(errs, err)
		if err == nil {
			all[e.name] = Pair{Cert: encodeCerts(c.certs), Key: c.keyPEM}
		}
	}
	return all, errors.Join(errs...)
}

// Take writes the files that cfg.Dir lacks, and puts what rotations have changed in place of what it has: rotated has the fingerprints of
// all keys that they have made or replaced. Everything else stays, such as a certificate that was renewed, and those that a user has put
// there. The caller has made sure that the keys in the directory are, or were, those of the cluster.
//
// Where an authority has another key, its file gets the new certificates before the old ones first, then comes the key, and last the old
// certificates leave: a kill in between leaves files that go together, and the next call goes on.
func (s Shared) Take(cfg Config, rotated []string) (taken bool, err error) {
	files := atomicfile.Writer{NoSync: cfg.NoSync, Fault: cfg.fault}
	var both, keys, certs []atomicfile.File
	var errs []error
	for _, e := range table {
		if _, ok := s[e.name]; !ok || !e.shared() {
			continue
		}
		want, err := s.pair(e)
		has, hasErr := loadPair(cfg.Dir, e)
		if err := errors.Join(err, hasErr); err != nil {
			errs = append(errs, err)
			continue
		}
		add := func(list *[]atomicfile.File, path string, data []byte) {
			to, err := destination.Follow(path)
			errs = append(errs, err)
			*list = append(*list, atomicfile.File{Path: to, Data: data, Mode: fileMode})
		}
		changed := has.public() != nil && !slices.Equal(want.rotatedOf(rotated), has.rotatedOf(rotated))
		taken = taken || changed
		if want.key != nil && (has.key == nil || changed) {
			add(&keys, has.keyFile, want.keyPEM)
		}
		if want.main == nil || has.main != nil && !changed {
			continue
		}
		users := slices.DeleteFunc(slices.Clone(has.certs), func(c *x509.Certificate) bool {
			return isRotated(c.PublicKey, rotated) || slices.ContainsFunc(want.certs, c.Equal)
		})
		if has.main != nil {
			add(&both, has.certFile, encodeCerts(slices.Concat(want.certs, has.certs)))
		}
		add(&certs, has.certFile, encodeCerts(slices.Concat(want.certs, users)))
	}
	if err := errors.Join(errs...); err != nil {
		return false, err
	}
	if err := makeDir(files, cfg.Dir); err != nil {
		return false, err
	}
	for _, list := range [][]atomicfile.File{both, keys, certs} {
		if err := files.Write(list...); err != nil {
			return false, err
		}
	}
	return taken, nil
}

// Fingerprints returns the SHA-256 of the public keys, in hexadecimal. A renewal of an authority
// keeps its key, so they stay the same until somebody replaces a key. They are no secrets.
func (s Shared) Fingerprints() (map[Name]string, error) {
	all := map[Name]string{}
	var errs []error
	for name := range s {
		e, ok := lookup(name)
		if !ok || !e.shared() {
			errs = append(errs, fmt.Errorf("%s is not what servers of a cluster share", name))
			continue
		}
		c, err := s.pair(e)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if c.public() == nil {
			errs = append(errs, fmt.Errorf("%s has neither a certificate nor a key", name))
			continue
		}
		sum, err := Fingerprint(c.public())
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		all[name] = sum
	}
	return all, errors.Join(errs...)
}

// Fingerprint returns the SHA-256 of a public key, in hexadecimal.
func Fingerprint(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:]), nil
}

// File returns the path in dir by which a user knows n: that of the certificate, or of the key if
// there is no certificate.
func File(dir string, n Name) string {
	if n == ServiceAccount {
		return keyFile(dir, n)
	}
	return certFile(dir, n)
}

// public returns the public key of a pair; nil if neither file exists.
func (p *pair) public() crypto.PublicKey {
	switch {
	case p.main != nil:
		return p.main.PublicKey
	case p.key != nil:
		return p.key.Public()
	}
	return nil
}

// EncryptionFile returns the path of the encryption configuration that a server has fetched.
func EncryptionFile(dir string) string { return filepath.Join(dir, "encryption-provider-config.yaml") }

// WriteEncryption writes [EncryptionFile], or the file that a link of that name leads to.
func WriteEncryption(dir string, content []byte) error {
	_, err := replace(atomicfile.Writer{}, EncryptionFile(dir), content, fileMode)
	return err
}
