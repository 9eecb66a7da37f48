package certs

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/destination"
)

// An authority is replaced in two stages. In between, its file has the new certificate, the former one, and a third, the
// bridge: the new key, signed by the former authority. The bridge goes with every new leaf, so programs accept it that
// trust only the former authority. What the former authority signed is accepted because its certificate is in the file.
//
// The service account key has no certificate. In between, its file has the former public key behind the new key, which
// is how upstream takes several keys that verify.

// Replace makes new authorities, or if serviceAccount is true a new service account key. What the former ones
// signed stays valid until DropFormer. It returns the names of what it replaced; what has a former one already is left alone, so
// Replace can be called again after a kill. Call Renew afterwards.
func (s *Store) Replace(serviceAccount bool) (replaced []Name, err error) {
	return s.each(serviceAccount, false, "replace", func(p *pair) error {
		if p.kind == KindKey {
			return s.replaceKey(p)
		}
		return s.replaceCA(p)
	})
}

// DropFormer removes what Replace has kept of the former authorities or key, and returns the names. Call Renew afterwards.
func (s *Store) DropFormer(serviceAccount bool) (dropped []Name, err error) {
	return s.each(serviceAccount, true, "drop the former", func(p *pair) error {
		if p.kind != KindKey {
			former := p.formerCerts()
			return s.write(p.certFile, encodeCerts(slices.DeleteFunc(slices.Clone(p.certs), func(c *x509.Certificate) bool { return slices.Contains(former, c) })))
		}
		return s.write(p.keyFile, withoutPublic(p.keyPEM))
	})
}

// withoutPublic returns the file of a service account key without the public parts of others.
func withoutPublic(file []byte) (own []byte) {
	for block, rest := pem.Decode(file); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != publicKey {
			own = append(own, pem.EncodeToMemory(block)...)
		}
	}
	return own
}

// each calls do, which verb names in errors, for what is between the two stages, or is not. It returns the names of what do has changed.
func (s *Store) each(serviceAccount, between bool, verb string, do func(*pair) error) (changed []Name, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pairs, err := s.replaceable(serviceAccount)
	if err != nil {
		return nil, err
	}
	for _, p := range pairs {
		if p.hasFormer() != between {
			continue
		}
		if err := do(p); err != nil {
			return changed, fmt.Errorf("%s %s: %w", verb, p.name, err)
		}
		changed = append(changed, p.name)
	}
	return changed, nil
}

// publicKey is the type of the PEM block with a former service account key.
const publicKey = "PUBLIC KEY"

// replaceable returns what Replace replaces. The error names everything that it cannot replace.
func (s *Store) replaceable(serviceAccount bool) (pairs []*pair, err error) {
	var errs []error
	for _, e := range table {
		if e.kind == KindLeaf || (e.kind == KindKey) != serviceAccount || !e.wanted(s.cfg.Dir, false) {
			continue
		}
		p, err := loadPair(s.cfg.Dir, e)
		if err == nil {
			err = p.replaceable()
		}
		errs = append(errs, err)
		pairs = append(pairs, p)
	}
	return pairs, errors.Join(errs...)
}

func (p *pair) replaceable() error {
	switch {
	case p.key == nil:
		return fmt.Errorf("%w: %s: put it back, to have it replaced", ErrKeyMissing, p.keyFile)
	case p.kind == KindCA && !p.ours:
		return fmt.Errorf("%s was not made by karve: replace it yourself: put a new authority before it in that file, and its key into %s", p.certFile, p.keyFile)
	}
	return nil
}

// hasFormer reports whether p is between the two stages.
func (p *pair) hasFormer() bool {
	return len(p.formerCerts()) > 0 || p.kind == KindKey && len(p.formerKeys()) > 0
}

// formerCerts returns the bridge and the certificates of the authority that signed it.
func (p *pair) formerCerts() (former []*x509.Certificate) {
	for _, bridge := range p.certs {
		if bytes.Equal(bridge.RawIssuer, p.main.RawSubject) || !bytes.Equal(bridge.RawSubject, p.main.RawSubject) || !samePublic(bridge.PublicKey, p.main.PublicKey) {
			continue
		}
		for _, c := range p.certs {
			if c == bridge || bytes.Equal(c.RawSubject, bridge.RawIssuer) {
				former = append(former, c)
			}
		}
	}
	return former
}

// formerKeys returns the public keys behind the private one.
func (p *pair) formerKeys() (former []crypto.PublicKey) {
	for block, rest := pem.Decode(p.keyPEM); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != publicKey {
			continue
		}
		if key, err := x509.ParsePKIXPublicKey(block.Bytes); err == nil {
			former = append(former, key)
		}
	}
	return former
}

// replaceCA puts a new authority before the present one. The new key is written first, under another name; then the
// certificates, of which the one with the key in KeyFile signs; and last the key takes its place. A kill at any moment leaves
// an authority that can sign, and the next call goes on.
func (s *Store) replaceCA(p *pair) error {
	pending := p.keyFile + ".next"
	data, _, err := readFile(pending)
	if err != nil {
		return err
	}
	var key crypto.Signer
	if data != nil {
		if key, err = parseKey(pending, data); err != nil {
			return err
		}
	}
	if key == nil || samePublic(key.Public(), p.key.Public()) { // of an earlier replacement, which was killed at its end
		if key, data, err = newKey(); err != nil {
			return err
		}
		if err := s.write(pending, data); err != nil {
			return err
		}
	}
	if !slices.ContainsFunc(p.certs, func(c *x509.Certificate) bool { return samePublic(c.PublicKey, key.Public()) }) {
		bundle, err := p.introduce(key, s.cfg.Now())
		if err != nil {
			return err
		}
		if err := s.write(p.certFile, bundle); err != nil {
			return err
		}
	}
	if err := s.write(p.keyFile, data); err != nil {
		return err
	}
	if err := os.Remove(pending); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// introduce returns the certificates of p behind those of a new authority: its own, and the bridge.
func (p *pair) introduce(key crypto.Signer, now time.Time) ([]byte, error) {
	if made, ok := caCreated(p.main.Subject.CommonName); ok && !now.Truncate(time.Second).After(made) {
		now = made.Add(time.Second) // the names have to differ
	}
	root, err := issueCA(p.entry, key, nil, now)
	if err != nil {
		return nil, err
	}
	bridge, err := issueBridge(root, p)
	if err != nil {
		return nil, err
	}
	return encodeCerts(append([]*x509.Certificate{root, bridge}, p.certs...)), nil
}

// issueBridge signs the key of root with the authority p.
func issueBridge(root *x509.Certificate, p *pair) (*x509.Certificate, error) {
	t := &x509.Certificate{
		RawSubject: root.RawSubject, NotBefore: notBefore, NotAfter: p.main.NotAfter, KeyUsage: root.KeyUsage,
		BasicConstraintsValid: true, IsCA: true, SubjectKeyId: root.SubjectKeyId,
	}
	issued, _ := marked(root)
	return sign(t, p.main, root.PublicKey, p.key, issued)
}

func (s *Store) replaceKey(p *pair) error {
	_, data, err := newKey()
	if err != nil {
		return err
	}
	both, err := withPublic(data, p.key)
	if err != nil {
		return err
	}
	return s.write(p.keyFile, both)
}

// withPublic returns the file of a service account key with the public part of another one behind it.
func withPublic(own []byte, other crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(other.Public())
	if err != nil {
		return nil, err
	}
	return append(slices.Clone(own), pem.EncodeToMemory(&pem.Block{Type: publicKey, Bytes: der})...), nil
}

func (s *Store) write(path string, data []byte) error {
	to, err := destination.Follow(path)
	if err != nil {
		return err
	}
	return s.files.Write(atomicfile.File{Path: to, Data: data, Mode: fileMode})
}

// Signer returns the name of the authority n that signs, and whether its file in dir still has a former one, which is trusted.
func Signer(dir string, n Name) (name string, former bool, err error) {
	e, _ := lookup(n)
	p, err := loadPair(dir, e)
	if err != nil || p.main == nil {
		return "", false, err
	}
	return p.main.Subject.CommonName, p.hasFormer(), nil
}

// Trusted reports whether the file of name has the public key with a fingerprint: the present one or, between Replace and DropFormer,
// the former one.
func (s Shared) Trusted(name Name, fingerprint string) bool {
	e, _ := lookup(name)
	p, err := s.pair(e)
	if err != nil || p.public() == nil {
		return false
	}
	all := append(p.formerKeys(), p.public())
	for _, c := range p.formerCerts() {
		all = append(all, c.PublicKey)
	}
	return slices.ContainsFunc(all, func(key crypto.PublicKey) bool {
		sum, err := Fingerprint(key)
		return err == nil && sum == fingerprint
	})
}
