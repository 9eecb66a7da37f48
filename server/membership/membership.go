// Package membership makes sure that a datastore and the keys of a server are of one cluster. The first
// server stores what servers of the cluster have in common in the datastore: the fingerprints of its keys
// and, with the cluster's token, the keys themselves, encrypted. Every later start compares its keys before
// it issues certificates. Other servers fetch them.
//
// DESIGN.md has the decisions.
package membership

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/server/storage"
)

// Option is the option that names the file with the token. NewAuthoritiesOption permits keys that are
// not the cluster's, in place of those that a record has. Its value is the record's id, so it permits that
// once, and does nothing while it stays in a configuration.
const (
	Option               = "cluster-token-file"
	NewAuthoritiesOption = "new-authorities"
)

// encryptionOption is the option of kube-apiserver for the encryption of stored objects.
const encryptionOption = "--encryption-provider-config"

// Cluster is the record of a cluster in a datastore.
type Cluster struct {
	KV     clientv3.KV // Join writes; Check only reads
	Prefix string      // of the API server's keys, with a slash at the end
	// Alone says that no other server can use the datastore, so that none needs the token.
	Alone bool
	// CheckEncryption says why an API server would not accept an encryption configuration.
	CheckEncryption func(content []byte) error
}

func (c Cluster) key() string { return c.Prefix + storage.ClusterRecord }

// Server is a server that is about to start.
type Server struct {
	Certs certs.Config // its directory may be empty
	// Token is nil without --cluster-token-file, which TokenFile names.
	Token     *Token
	TokenFile string
	// Encryption is the content of the file of --encryption-provider-config; nil without the option.
	Encryption []byte
	// OtherFrontProxy says that an option names the authority of the front proxy, in place of the one in the
	// directory.
	OtherFrontProxy bool
	// NewAuthorities is the value of --new-authorities; empty without it.
	NewAuthorities string
}

// replaces reports whether the user wants the keys of s in place of those of r.
func (s Server) replaces(r *record) bool { return s.NewAuthorities == r.id() }

// Outcome is what Join has done.
type Outcome struct {
	Recorded bool // the fingerprints of the server's own keys are now the cluster's
	Stored   bool // the server's own material is now the cluster's, encrypted
	Fetched  bool // from the datastore, what the server lacked
	Replaced bool // the server's own keys are now the cluster's, in place of others
}

// ErrOther means that the keys of a server are not those of the cluster in the datastore, or that it
// lacks some of them.
var ErrOther = errors.New("the datastore has a cluster whose keys this server does not have")

// OtherKeys is [ErrOther] in two parts.
type OtherKeys struct {
	Reason string // which keys, and of which record
	Ways   string // to go on; one of them is enough
}

func (e *OtherKeys) Error() string { return e.Reason + ". Do one of these: " + e.Ways }

// Is says that e is ErrOther.
func (e *OtherKeys) Is(target error) bool { return target == ErrOther }

// attempts limits how often Join begins again because somebody else has changed the record.
const attempts = 5

// Join makes s a server of the cluster. The files that s lacks are then in its directory, and the
// cluster's encryption configuration is in [certs.EncryptionFile], unless s has its own file. Join
// changes no file that is there, except this copy, and never the record of another server. If both
// differ, it is an error.
//
// If several servers can use the datastore, the record is created before any file is written. So a server
// that is killed in between finds the record and fetches it, and of two first servers one is told that it
// was the second.
func (c Cluster) Join(ctx context.Context, s Server) (Outcome, error) {
	local, err := certs.ReadShared(s.Certs.Dir)
	if err != nil {
		return Outcome{}, err
	}
	for range attempts {
		r, revision, err := c.accept(ctx, s, local)
		done := Outcome{}
		ok := true
		switch {
		case errors.Is(err, ErrOther) && s.replaces(r):
			done, ok, err = c.store(ctx, s, revision)
			done.Replaced = ok
		case errors.Is(err, errUnknown) && s.Token == nil: // nothing says which keys are the cluster's, so nothing is recorded
			err = nil
		case err != nil:
		case r == nil || s.Token != nil && len(r.Sealed) == 0:
			done, ok, err = c.store(ctx, s, revision)
		case s.Token != nil:
			done, err = c.fetch(r, s, local)
		}
		if ok || err != nil {
			return done, err
		}
	}
	return Outcome{}, fmt.Errorf("%s keeps changing: start the server again", c.key())
}

// Check returns the error with which Join would refuse s, as far as that can be told without decrypting
// the record. It changes nothing.
func (c Cluster) Check(ctx context.Context, s Server) error {
	local, err := certs.ReadShared(s.Certs.Dir)
	if err != nil {
		return err
	}
	r, _, err := c.accept(ctx, s, local)
	if errors.Is(err, ErrOther) && s.replaces(r) || errors.Is(err, errUnknown) && s.Token == nil {
		return nil
	}
	return err
}

// accept reads the record. The error says why s may not start on the datastore, as that of refusal does.
func (c Cluster) accept(ctx context.Context, s Server, local certs.Shared) (*record, int64, error) {
	for tries := attempts; ; tries-- {
		r, revision, err := c.read(ctx)
		if err != nil {
			return nil, 0, err
		}
		refused := c.refusal(ctx, r, s, local)
		if refused == nil || r != nil || tries == 0 {
			return r, revision, refused
		}
		// A server may have stored the record, and then its objects, since it was read.
		if now, _, err := c.read(ctx); err != nil || now == nil {
			return nil, 0, cmp.Or(err, refused)
		}
	}
}

// refusal says why s may not start on the datastore with the record r: [ErrOther], errUnknown or another
// error. r is nil if there is no record.
func (c Cluster) refusal(ctx context.Context, r *record, s Server, local certs.Shared) error {
	if r == nil {
		found, err := c.KV.Get(ctx, c.Prefix+"namespaces/", clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
		if err != nil {
			return fmt.Errorf("read the datastore: %w", err)
		}
		if len(found.Kvs) == 0 {
			return nil // a new cluster
		}
		// In an existing cluster, new keys would make this server the only one that has them.
		if lacking := lackingOf(local); len(lacking) > 0 {
			return c.other(r, s, lackingReason(s, local, lacking))
		}
		return c.checkStored(ctx, s, local)
	}
	differing, lacking, err := compare(local, r)
	switch {
	case err != nil:
		return err
	case len(differing) > 0:
		return c.other(r, s, fmt.Sprintf("%s %s not the cluster's", files(s.Certs.Dir, differing), are(differing)))
	case len(lacking) > 0 && (len(r.Sealed) == 0 || s.Token == nil):
		return c.other(r, s, lackingReason(s, local, lacking))
	}
	return nil
}

func lackingReason(s Server, local certs.Shared, lacking []certs.Name) string {
	if len(local) == 0 {
		return fmt.Sprintf("%s has none of its keys", s.Certs.Dir)
	}
	return fmt.Sprintf("%s %s missing", files(s.Certs.Dir, lacking), are(lacking))
}

// other returns ErrOther with a reason and the ways on.
func (c Cluster) other(r *record, s Server, reason string) error {
	ways := []string{"put its keys there: certs/ of the server that ran the cluster, or that of a snapshot or a copy of its data directory"}
	switch {
	case r != nil && len(r.Sealed) > 0 && s.Token == nil:
		ways = append(ways, fmt.Sprintf("give the file with the token that its servers share as --%s", Option))
	case !c.Alone && (r == nil || len(r.Sealed) == 0):
		ways = append(ways, fmt.Sprintf("start the server that has them with --%s, and then this one, with the same token and a new --data-dir", Option))
	}
	ways = append(ways,
		"use a new --data-dir and another datastore for a cluster of its own",
		fmt.Sprintf("or go on with new authorities by --%s %s, after which kubeconfigs, tokens and node certificates that the old ones have signed are refused", NewAuthoritiesOption, r.id()))
	return &OtherKeys{fmt.Sprintf("%v (%s): %s", ErrOther, c.key(), reason), strings.Join(ways, "; ")}
}

// fetch makes s a server of the cluster whose material r has. No key of s differs.
func (c Cluster) fetch(r *record, s Server, local certs.Shared) (Outcome, error) {
	m, err := c.open(r, s)
	if err != nil {
		return Outcome{}, err
	}
	_, lacking, err := compare(local, r)
	if err != nil {
		return Outcome{}, err
	}
	if err := checkEncryption(m, s); err != nil {
		return Outcome{}, err
	}
	if err := m.Shared.WriteMissing(s.Certs); err != nil {
		return Outcome{}, err
	}
	return Outcome{Fetched: len(lacking) > 0}, keepEncryption(m, s)
}

// open decrypts r. Its errors name the option.
func (c Cluster) open(r *record, s Server) (*Material, error) {
	m, err := r.open(s.Token)
	if errors.Is(err, ErrToken) {
		return nil, fmt.Errorf("--%s %s: %w: copy the file from a server of that cluster", Option, s.TokenFile, err)
	} else if err != nil {
		return nil, fmt.Errorf("%s %w", c.key(), err)
	}
	return m, nil
}

// store writes what s has as the cluster's, in place of the record at revision. Without a token, it
// writes fingerprints only.
func (c Cluster) store(ctx context.Context, s Server, revision int64) (done Outcome, ok bool, err error) {
	shared, err := certs.MakeShared(s.Certs)
	if err != nil {
		return Outcome{}, false, err
	}
	m := &Material{Shared: shared, Encryption: s.Encryption}
	if s.Token != nil {
		name := encryptionOption
		if m.Encryption == nil { // what this server has fetched, if the record was lost since
			name = certs.EncryptionFile(s.Certs.Dir)
			if m.Encryption, err = os.ReadFile(name); err != nil && !errors.Is(err, os.ErrNotExist) {
				return Outcome{}, false, err
			}
		}
		if m.Encryption != nil {
			if err := c.CheckEncryption(m.Encryption); err != nil {
				return Outcome{}, false, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	value, err := seal(*m, s.Token)
	if err != nil {
		return Outcome{}, false, fmt.Errorf("encrypt the cluster's keys: %w", err)
	}
	if c.Alone { // nobody else writes the record, and a kill must not leave one whose keys are nowhere
		if err := m.Shared.WriteMissing(s.Certs); err != nil {
			return Outcome{}, false, err
		}
	}
	if ok, err := c.write(ctx, value, revision); err != nil || !ok {
		return Outcome{}, ok, err
	}
	return Outcome{Recorded: true, Stored: s.Token != nil}, true, m.Shared.WriteMissing(s.Certs)
}

// Rotate encrypts the record with another token. With encryption, a pointer to the content of a
// file, it replaces the encryption configuration, too. Either all of it happens or nothing.
// Servers that run are not disturbed: they read the record when they start.
func (c Cluster) Rotate(ctx context.Context, before, after *Token, encryption *[]byte) error {
	r, revision, err := c.read(ctx)
	if err != nil {
		return err
	}
	if r == nil || len(r.Sealed) == 0 {
		return fmt.Errorf("the datastore has no keys in %s: no server has been started with --%s", c.key(), Option)
	}
	m, err := r.open(before)
	if errors.Is(err, ErrToken) {
		return err
	} else if err != nil {
		return fmt.Errorf("%s %w", c.key(), err)
	}
	if encryption != nil {
		if m.Encryption = *encryption; m.Encryption != nil {
			if err := c.CheckEncryption(m.Encryption); err != nil {
				return fmt.Errorf("%s: %w", encryptionOption, err)
			}
		}
	}
	value, err := seal(*m, after)
	if err != nil {
		return fmt.Errorf("encrypt the cluster's keys: %w", err)
	}
	ok, err := c.write(ctx, value, revision)
	if err != nil {
		return fmt.Errorf("%w: the outcome is unknown, and the new token or configuration may be in force: run the command again, and if the old token is refused, the new one is the cluster's", err)
	}
	if !ok {
		err = fmt.Errorf("%s has changed meanwhile, and nothing was done: is somebody else rotating the token?", c.key())
	}
	return err
}

// read returns the record and its revision; nil if there is none.
func (c Cluster) read(ctx context.Context) (*record, int64, error) {
	got, err := c.KV.Get(ctx, c.key())
	if err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", c.key(), err)
	}
	if len(got.Kvs) == 0 {
		return nil, 0, nil
	}
	r, err := parse(got.Kvs[0].Value)
	if err != nil {
		return nil, 0, fmt.Errorf("%s %w", c.key(), err)
	}
	return r, got.Kvs[0].ModRevision, nil
}

// write stores the record if it is at revision; 0 means that there is none. The transactions have
// the forms that kine understands.
func (c Cluster) write(ctx context.Context, value []byte, revision int64) (ok bool, err error) {
	txn := c.KV.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(c.key()), "=", revision)).Then(clientv3.OpPut(c.key(), string(value)))
	if revision != 0 {
		txn = txn.Else(clientv3.OpGet(c.key()))
	}
	done, err := txn.Commit()
	if err != nil {
		return false, fmt.Errorf("write %s: %w", c.key(), err)
	}
	return done.Succeeded, nil
}

// compare returns the keys of a server that differ from those of the record, and those that only the
// record has.
func compare(local certs.Shared, r *record) (differing, lacking []certs.Name, err error) {
	own, err := local.Fingerprints()
	if err != nil {
		return nil, nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(r.Keys)) {
		switch has, ok := own[name]; {
		case !ok:
			lacking = append(lacking, name)
		case has != r.Keys[name]:
			differing = append(differing, name)
		}
	}
	return differing, lacking, nil
}

func lackingOf(local certs.Shared) (lacking []certs.Name) {
	for _, name := range certs.SharedNames() {
		if _, ok := local[name]; !ok {
			lacking = append(lacking, name)
		}
	}
	return lacking
}

// checkEncryption refuses a server that would encrypt with other keys than the cluster: the others
// could not read what it writes.
func checkEncryption(m *Material, s Server) error {
	switch {
	case s.Encryption == nil || bytes.Equal(s.Encryption, m.Encryption):
		return nil
	case m.Encryption == nil:
		return fmt.Errorf("%s: the cluster has been stored without it: store this file with karve cluster-token rotate %[1]s FILE, or leave the option out", encryptionOption)
	}
	return fmt.Errorf("%s: the file is not the cluster's: leave the option out to use the cluster's, or store this file with karve cluster-token rotate %[1]s FILE", encryptionOption)
}

// keepEncryption makes the server's copy of the encryption configuration the cluster's. A server
// with a file of its own gets no copy, but one that it has is not left to become old. A copy that the
// cluster does not use any more is renamed, because stored objects may still need its keys.
func keepEncryption(m *Material, s Server) error {
	file := certs.EncryptionFile(s.Certs.Dir)
	has, err := os.ReadFile(file)
	exists := !errors.Is(err, os.ErrNotExist)
	switch {
	case err != nil && exists:
		return err
	case m.Encryption == nil && exists:
		return os.Rename(file, file+".old")
	case m.Encryption == nil || !exists && s.Encryption != nil || exists && bytes.Equal(has, m.Encryption):
		return nil
	}
	return atomicfile.Write(file, m.Encryption, 0o600)
}

// files names the files of names in one directory.
func files(dir string, names []certs.Name) string {
	var all []string
	for i, name := range names {
		path := certs.File(dir, name)
		if i > 0 {
			path = filepath.Base(path)
		}
		all = append(all, path)
	}
	return strings.Join(all, ", ")
}

func are(names []certs.Name) string {
	if len(names) == 1 {
		return "is"
	}
	return "are"
}
