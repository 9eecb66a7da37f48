// Package membership makes sure that a datastore and the keys of a server are of one cluster. The first
// server stores what servers of the cluster have in common in the datastore: the fingerprints of its keys
// and, with the cluster's token, the keys themselves, encrypted. Every later start compares its keys before
// it issues certificates. Other servers fetch them.
//
// DESIGN.md has the decisions.
package membership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/datastore/directory"
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
	// PrivateStorage says that no other server can use the datastore, so that none needs the token.
	PrivateStorage bool
	// Ways returns how an API server with an encryption configuration can read Secrets, or why it would not accept that.
	Ways func(content []byte) ([]Stored, error)
}

func (c Cluster) key() string { return c.Prefix + storage.ClusterRecord }

// Server is a server that is about to start.
type Server struct {
	Certs certs.Config // its directory may be empty
	// Token is nil without --cluster-token-file.
	Token *Token
	// Encryption is the content of the file of --encryption-provider-config; nil without the option.
	Encryption []byte
	// NewEncryption makes the encryption configuration of a new cluster; nil if it gets none.
	NewEncryption func() ([]byte, error)
	// OtherFrontProxy says that an option names the authority of the front proxy, in place of the one in the
	// directory.
	OtherFrontProxy bool
	// NewAuthorities is the value of --new-authorities; empty without it.
	NewAuthorities string
	// Lasting says that the datastore outlives the process. Then one without a cluster is refused if the keys have served one.
	Lasting bool
}

// replaces reports whether the user wants the keys of s in place of those of r.
func (s Server) replaces(r *record) bool { return s.NewAuthorities == r.id() }

// Outcome is what Join has done.
type Outcome struct {
	Recorded bool // the fingerprints of the server's own keys are now the cluster's
	Stored   bool // the server's own material is now the cluster's, encrypted
	Fetched  bool // from the datastore, what the server lacked
	Taken    bool // keys that were replaced since the server's last start
	Replaced bool // the server's own keys are now the cluster's, in place of others
	// Encrypted says that the cluster is new, and has got an encryption configuration.
	Encrypted bool
	// Steps are the last ones in replacements of keys, which the server has now taken: see [StepsAnnotation].
	Steps string
}

// attempts limits how often Join begins again because somebody else has changed the record.
const attempts = 5

// Join makes s a server of the cluster. The files that s lacks are then in its directory, and the
// cluster's encryption configuration is in [certs.EncryptionFile], unless s has its own file. Join
// changes no file that is there, except this copy and keys that the cluster has replaced, and never the record of another server. If both
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

// fetch makes s a server of the cluster whose material r has. The keys of s are the cluster's, or were.
func (c Cluster) fetch(r *record, s Server, local certs.Shared) (Outcome, error) {
	m, err := c.open(r, s.Token)
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
	done := Outcome{Fetched: len(lacking) > 0, Steps: r.steps()}
	if done.Taken, err = m.Shared.Take(s.Certs, r.Rotated); err != nil {
		return Outcome{}, err
	}
	return done, keepEncryption(m, s)
}

// open decrypts r. Its errors name the option and the file of the token, or the record.
func (c Cluster) open(r *record, token *Token) (*Material, error) {
	m, err := r.open(token)
	if err != nil && !errors.Is(err, ErrToken) {
		err = fmt.Errorf("%s %w", c.key(), err)
	}
	return m, err
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
			if _, err := c.Ways(m.Encryption); err != nil {
				return Outcome{}, false, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	made, err := c.newEncryption(ctx, s, m.Encryption, revision)
	if err != nil {
		return Outcome{}, false, err
	}
	if made != nil {
		m.Encryption = made
	}
	value, err := seal(*m, s.Token)
	if err != nil {
		return Outcome{}, false, fmt.Errorf("encrypt the cluster's keys: %w", err)
	}
	writeFiles := func() error {
		if _, err := m.Shared.Take(s.Certs, nil); err != nil || made == nil {
			return err
		}
		return certs.WriteEncryption(s.Certs.Dir, made)
	}
	if c.PrivateStorage { // nobody else writes the record, and a kill must not leave one whose keys are nowhere
		if err := writeFiles(); err != nil {
			return Outcome{}, false, err
		}
	}
	if ok, err := c.write(ctx, value, revision); err != nil || !ok {
		return Outcome{}, ok, err
	}
	if !c.PrivateStorage {
		err = writeFiles()
	}
	return Outcome{Recorded: true, Stored: s.Token != nil, Encrypted: made != nil}, true, err
}

// newEncryption returns the encryption configuration that s makes for a new cluster, or nil. Servers that share a datastore
// without a token could not give each other the key.
func (c Cluster) newEncryption(ctx context.Context, s Server, has []byte, revision int64) ([]byte, error) {
	if s.NewEncryption == nil || has != nil || revision != 0 || !c.PrivateStorage && s.Token == nil {
		return nil, nil
	}
	if _, err := os.Stat(certs.EncryptionFile(s.Certs.Dir)); !errors.Is(err, os.ErrNotExist) {
		return nil, err // of a start that was killed, or brought by the user
	}
	if empty, err := c.isNew(ctx); err != nil || !empty {
		return nil, err
	}
	return s.NewEncryption()
}

// isNew reports whether the datastore has no cluster.
func (c Cluster) isNew(ctx context.Context) (bool, error) {
	found, err := c.KV.Get(ctx, c.Prefix+"namespaces/", clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	if err != nil {
		return false, fmt.Errorf("read the datastore: %w", err)
	}
	return len(found.Kvs) == 0, nil
}

// Rotate encrypts the record with another token. With encryption, a pointer to the content of a
// file, it replaces the encryption configuration, too. Either all of it happens or nothing.
// Servers that run are not disturbed: they read the record when they start.
func (c Cluster) Rotate(ctx context.Context, before, after *Token, encryption *[]byte) error {
	r, revision, err := c.readSealed(ctx)
	if err != nil {
		return err
	}
	m, err := c.open(r, before)
	if err != nil {
		return err
	}
	if encryption != nil {
		m.rotations.step(Encryption, Switched)
		before, _ := c.ways(m.Encryption) // one that is no good any more reads nothing
		m.Encryption = *encryption
		if err := c.checkReadable(ctx, m.Encryption, func(how Stored) bool { return slices.Contains(before, how) }); err != nil {
			return err
		}
	}
	value, err := seal(*m, after)
	if err != nil {
		return fmt.Errorf("encrypt the cluster's keys: %w", err)
	}
	return c.replace(ctx, value, revision)
}

// replace stores the record in place of the one at revision.
func (c Cluster) replace(ctx context.Context, value []byte, revision int64) error {
	ok, err := c.write(ctx, value, revision)
	if refusal(err) {
		return fmt.Errorf("%w: nothing was changed: run the command again when this is mended", err)
	} else if err != nil {
		return fmt.Errorf("%w: the outcome is unknown, and the new token or configuration may be in force: run the command again, and if the old token is refused, the new one is the cluster's", err)
	}
	if !ok {
		err = fmt.Errorf("%s has changed meanwhile, and nothing was done: is somebody else rotating the token?", c.key())
	}
	return err
}

// refusal reports whether err is the datastore's answer that it has not written, such as that its disk is full.
func refusal(err error) bool {
	if answer, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		switch answer.Code() {
		case codes.ResourceExhausted, codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition:
			return true
		}
	}
	return false
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

// readSealed is read for a record that has the keys.
func (c Cluster) readSealed(ctx context.Context) (*record, int64, error) {
	r, revision, err := c.read(ctx)
	if err == nil && (r == nil || len(r.Sealed) == 0) {
		err = fmt.Errorf("the datastore has no keys in %s: no server has been started with --%s", c.key(), Option)
	}
	return r, revision, err
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
		old, err := directory.Unused(file + ".old") // an earlier one may have the only copy of a key
		if err != nil {
			return err
		}
		return os.Rename(file, old)
	case m.Encryption == nil || !exists && s.Encryption != nil || exists && bytes.Equal(has, m.Encryption):
		return nil
	}
	return certs.WriteEncryption(s.Certs.Dir, m.Encryption)
}
