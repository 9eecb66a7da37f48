package membership

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/karve-k8s/karve/certs"
)

// ServerLabel is on the Lease of each server, and StepsAnnotation has the steps that the server has taken, as JSON. While authorities are
// being replaced, IssuerAnnotation on the Lease of a node names the authority of the certificate with which it has come last.
const (
	ServerLabel      = "apiserver.kubernetes.io/identity" // upstream's
	StepsAnnotation  = "membership.karve/steps"
	IssuerAnnotation = "membership.karve/issuer"
)

// Kind is a kind of keys that are replaced together.
type Kind string

// The kinds.
const (
	Authorities       Kind = "authorities"
	ServiceAccountKey Kind = "service-account-key"
	Encryption        Kind = "encryption" // of Secrets; its steps are in the configuration
)

// Step is a step in the replacement of keys. It is in force on a server that has been started again.
type Step string

// The steps. The next one needs the present one on all servers.
const (
	Introduced Step = "introduced" // servers trust the new keys, and sign with the old ones
	Switched   Step = "switched"   // servers sign with the new keys, and still trust the old ones
	Dropped    Step = "dropped"    // servers trust the new keys only
	Finished   Step = "finished"   // all servers have dropped the old keys
)

// step records a step of a kind.
func (r *rotations) step(k Kind, s Step) {
	r.Steps = maps.Clone(r.Steps)
	if r.Steps == nil {
		r.Steps = map[Kind]string{}
	}
	r.Steps[k] = string(s) + "." + rand.Text()
}

// present returns the last step of a kind; empty before the first one.
func (r *rotations) present(k Kind) Step {
	s, _, _ := strings.Cut(r.Steps[k], ".")
	return Step(s)
}

func (r *rotations) steps() string {
	if len(r.Steps) == 0 {
		return ""
	}
	text, _ := json.Marshal(r.Steps) // strings: it cannot fail
	return string(text)
}

// Last returns the last step in the replacement of keys of a kind, as servers report it; empty if there was none.
func (c Cluster) Last(ctx context.Context, k Kind) (string, error) {
	r, _, err := c.read(ctx)
	if err != nil || r == nil {
		return "", err
	}
	return r.Steps[k], nil
}

// RotateKeys takes the next step in the replacement of the keys of a kind, and returns the step that the cluster is at then. With drop, that is one after
// Switched, and otherwise one before. taken returns an error if servers have not taken the last step.
func (c Cluster) RotateKeys(ctx context.Context, token *Token, k Kind, drop bool, taken func(step string) error) (Step, error) {
	r, revision, err := c.readSealed(ctx)
	if err != nil {
		return "", err
	}
	m, err := c.open(r, token)
	if err != nil {
		return "", err
	}
	at := r.present(k)
	next := map[Step]Step{"": Introduced, Introduced: Switched, Switched: Switched, Dropped: Introduced}[at]
	if drop {
		next = map[Step]Step{Switched: Dropped, Dropped: Finished}[at]
	}
	switch {
	case next == "" && at == Introduced:
		return "", errors.New("the new keys do not sign yet: run the command without --drop-old first")
	case next == "":
		return "", errors.New("nothing is being replaced: run karve certs rotate-ca without --drop-old first")
	case next == at:
		return at, nil
	case next != Introduced:
		if err := taken(r.Steps[k]); err != nil || next == Finished {
			return next, err
		}
	}
	if err := m.advance(k, next); err != nil {
		return "", err
	}
	value, err := seal(*m, token)
	if err != nil {
		return "", fmt.Errorf("encrypt the cluster's keys: %w", err)
	}
	return next, c.replace(ctx, value, revision)
}

// advance brings m to the next step of a kind.
func (m *Material) advance(k Kind, next Step) error {
	serviceAccount := k == ServiceAccountKey
	switch next {
	case Introduced:
		made, err := m.Shared.Introduce(serviceAccount, m.rotations.Rotated, time.Now())
		if err != nil {
			return err
		}
		before, err1 := m.Shared.Fingerprints()
		keys, err2 := made.Fingerprints()
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if m.Next == nil {
			m.Next = certs.Shared{}
		}
		for name, key := range keys {
			m.Next[name] = made[name]
			m.rotations.Rotated = append(m.rotations.Rotated, before[name], key)
		}
		slices.Sort(m.rotations.Rotated)
		m.rotations.Rotated = slices.Compact(m.rotations.Rotated)
	case Switched:
		for name, pair := range m.Next {
			if (name == certs.ServiceAccount) == serviceAccount {
				m.Shared[name] = pair
				delete(m.Next, name)
			}
		}
	case Dropped:
		if _, err := m.Shared.DropFormer(serviceAccount, m.rotations.Rotated); err != nil {
			return err
		}
	}
	m.rotations.step(k, next)
	return nil
}

// endSteps makes material that was read from a server's files what the last steps have left. Keys that were introduced are lost: their
// replacement begins again.
func (m *Material) endSteps() error {
	for _, k := range []Kind{Authorities, ServiceAccountKey} {
		if at := m.rotations.present(k); at != Introduced && at != Dropped {
			continue
		}
		if err := m.advance(k, Dropped); err != nil {
			return err
		}
	}
	return nil
}
