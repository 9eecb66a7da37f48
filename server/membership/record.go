package membership

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"

	"filippo.io/age"

	"github.com/karve-k8s/karve/certs"
)

// Work factors of scrypt, as powers of 2: 2^15 takes 32 MiB of memory for the time of a start. age's
// own default, 2^18, would take 256 MiB. A token is long and random, so a guess costs enough.
// Records with more than mostWork are refused, because the datastore could ask for any amount.
const (
	workFactor = 15
	mostWork   = 17
)

// format is the version of the record's form.
const format = 1

// record is what the datastore has, as JSON. Keys are fingerprints of the public keys: so a server
// without a token knows whether it is one of the cluster's. Sealed is the [Material], encrypted
// by age with the token. It is empty until a server has been started with a token.
type record struct {
	Format int                   `json:"format"`
	Keys   map[certs.Name]string `json:"keys"`
	Sealed []byte                `json:"sealed,omitempty"`
	rotations
}

// rotations say what has been replaced. They are no secret: a server is accepted, or refused, before anything is decrypted.
type rotations struct {
	// Steps has the last step in the replacement of keys of each kind. Each is another one, so a server that reports it has taken it.
	Steps map[Kind]string `json:"steps,omitempty"`
	// Rotated has the fingerprints of all keys that were made or replaced.
	Rotated []string `json:"rotated,omitempty"`
}

// Material is what makes a cluster this cluster.
type Material struct {
	Shared certs.Shared `json:"shared"`
	// Encryption is the file of --encryption-provider-config; nil if there is none.
	Encryption []byte `json:"encryption,omitempty"`
	// Next has the keys that are going to sign, while servers learn to trust them.
	Next certs.Shared `json:"next,omitempty"`

	rotations rotations // is not encrypted
}

// ErrToken means that the record is encrypted with another token.
var ErrToken = errors.New("the token is not the one of the cluster in the datastore")

// errChanged means that the record cannot be what a server wrote.
var errChanged = errors.New("is damaged, or something else than Karve wrote it")

// seal returns the record of m. Without a token, it has the fingerprints only.
func seal(m Material, token *Token) ([]byte, error) {
	keys, err := m.Shared.Fingerprints()
	if err != nil {
		return nil, err
	}
	if token == nil {
		return json.Marshal(record{Format: format, Keys: keys, rotations: m.rotations})
	}
	plain, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	recipient, err := age.NewScryptRecipient(token.secret)
	if err != nil {
		return nil, err
	}
	recipient.SetWorkFactor(workFactor)
	var sealed bytes.Buffer
	w, err := age.Encrypt(&sealed, recipient)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return json.Marshal(record{Format: format, Keys: keys, Sealed: sealed.Bytes(), rotations: m.rotations})
}

// unrecorded is the id of a cluster without a record. Those of others have idBytes bytes.
const (
	unrecorded = "unrecorded"
	idBytes    = 8
)

// id names the record by its keys. It changes when they do.
func (r *record) id() string {
	if r == nil {
		return unrecorded
	}
	keys, _ := json.Marshal(r.Keys) // strings, sorted: it cannot fail
	sum := sha256.Sum256(keys)
	return hex.EncodeToString(sum[:idBytes])
}

// CheckID says why a value of --new-authorities cannot be the id of a record; empty is no value.
func CheckID(id string) error {
	if sum, err := hex.DecodeString(id); id == "" || id == unrecorded || err == nil && len(sum) == idBytes {
		return nil
	}
	return fmt.Errorf("want the value that a refused start names: %s, or %d hexadecimal digits", unrecorded, 2*idBytes)
}

// parse reads what is not encrypted.
func parse(value []byte) (*record, error) {
	r := &record{}
	if err := json.Unmarshal(value, r); err != nil || r.Format < 1 {
		return nil, errChanged
	}
	if r.Format > format {
		return nil, fmt.Errorf("was written by a newer Karve (format %d, this one reads %d): upgrade this server", r.Format, format)
	}
	for _, name := range certs.SharedNames() {
		if r.Keys[name] == "" {
			return nil, errChanged
		}
	}
	return r, nil
}

// open decrypts a record. The keys in it must be those of its fingerprints.
func (r *record) open(token *Token) (*Material, error) {
	identity, err := age.NewScryptIdentity(token.secret)
	if err != nil {
		return nil, err
	}
	identity.SetMaxWorkFactor(mostWork)
	plain, err := age.Decrypt(bytes.NewReader(r.Sealed), identity)
	if errors.Is(err, age.ErrIncorrectIdentity) {
		return nil, fmt.Errorf("--%s %s: %w: take a copy of the file that its servers have", Option, token.file, ErrToken)
	} else if err != nil {
		return nil, fmt.Errorf("%w: %w", errChanged, err)
	}
	content, err := io.ReadAll(plain)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errChanged, err)
	}
	m := &Material{}
	if json.Unmarshal(content, m) != nil { // the error could quote a key
		return nil, errChanged
	}
	keys, err := m.Shared.Fingerprints()
	if err != nil || !maps.Equal(keys, r.Keys) {
		return nil, errChanged
	}
	m.rotations = r.rotations
	return m, nil
}
