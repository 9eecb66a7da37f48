package certs

import (
	"crypto"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Servers that share their keys replace them in three steps, because one of them may sign what another one has to accept, and a
// certificate for a kubelet comes without the bridge: all servers trust the new keys; then they sign with them; then the former ones are
// dropped. Each step changes a [Shared] in memory, and [Shared.Take] brings it to a server.

// Introduce makes new authorities, or a new service account key, and returns the pairs that sign with them. From then on s trusts them, and
// signs with the present ones. rotated has the fingerprints of the keys of earlier rotations, which are not trusted any more.
func (s Shared) Introduce(serviceAccount bool, rotated []string, now time.Time) (next Shared, err error) {
	next = Shared{}
	_, err = s.rotate(serviceAccount, rotated, func(p *pair) (Pair, error) {
		key, data, err := newKey()
		if err != nil {
			return Pair{}, err
		}
		if p.kind == KindKey {
			signs, err := withPublic(data, p.key)
			if err != nil {
				return Pair{}, err
			}
			next[p.name] = Pair{Key: signs}
			both, err := withPublic(p.keyPEM, key)
			return Pair{Key: both}, err
		}
		bundle, err := p.introduce(key, now)
		next[p.name] = Pair{Cert: bundle, Key: data}
		return Pair{Cert: bundle, Key: p.keyPEM}, err
	})
	return next, err
}

// DropFormer removes what s trusts of keys that rotations have made or replaced, but for the present ones, and returns the names.
func (s Shared) DropFormer(serviceAccount bool, rotated []string) (dropped []Name, err error) {
	return s.rotate(serviceAccount, rotated, func(p *pair) (Pair, error) { return Pair{Cert: p.certPEM, Key: p.keyPEM}, nil })
}

// rotate puts what do returns for the authorities, or for the service account key, in their place. do gets them without what
// was rotated. The names are those of what had some.
func (s Shared) rotate(serviceAccount bool, rotated []string, do func(*pair) (Pair, error)) (had []Name, err error) {
	for _, e := range table {
		if !e.shared() || (e.kind == KindKey) != serviceAccount {
			continue
		}
		p, err := s.pair(e)
		if err == nil {
			err = p.replaceable()
		}
		if err != nil {
			return nil, err
		}
		if len(p.rotatedOf(rotated)) > 1 {
			had = append(had, e.name)
			p.certs = slices.DeleteFunc(p.certs, func(c *x509.Certificate) bool { return c != p.main && isRotated(c.PublicKey, rotated) })
			if p.kind == KindCA {
				p.certPEM = encodeCerts(p.certs)
			} else {
				p.keyPEM = withoutPublic(p.keyPEM)
			}
		}
		if s[e.name], err = do(p); err != nil {
			return nil, fmt.Errorf("replace %s: %w", e.name, err)
		}
	}
	return had, nil
}

// rotatedOf returns the fingerprints of the key that signs and, sorted, of the others that rotations have made or replaced.
func (p *pair) rotatedOf(rotated []string) []string {
	keys := p.formerKeys()
	for _, c := range p.certs {
		keys = append(keys, c.PublicKey)
	}
	first, _ := Fingerprint(p.public()) // of a key that Fingerprints knows
	others := map[string]bool{}
	for _, key := range keys {
		if sum, _ := Fingerprint(key); sum != first && slices.Contains(rotated, sum) {
			others[sum] = true
		}
	}
	return append([]string{first}, slices.Sorted(maps.Keys(others))...)
}

func isRotated(key crypto.PublicKey, rotated []string) bool {
	sum, err := Fingerprint(key)
	return err == nil && slices.Contains(rotated, sum)
}
