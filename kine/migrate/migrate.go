// Package migrate copies a cluster's objects from one datastore to another: between the built-in datastore,
// PostgreSQL, MySQL and etcd. DESIGN.md has the decisions.
package migrate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/karve-k8s/karve/kine/external"
	"github.com/karve-k8s/karve/kine/location"
)

// End is one of the two datastores: one of Dir, Database and Etcd is set.
type End struct {
	Option string // by which the user has named it, for messages
	Where  string // for messages, without passwords

	Dir      string // of the built-in datastore; absolute
	Database *external.Database
	Etcd     []string // URLs

	CAFile, CertFile, KeyFile string // for TLS
	FileOptions               string // the options with the files, for messages
}

// Progress is how far a migration is.
type Progress struct {
	Doing       string
	Done, Total int64 // keys; revisions when it raises the revision
	Bytes       int64 // of the values
}

// What a migration is doing.
const (
	raisingRevision = "raising the revision"
	copying         = "copying"
	verifying       = "verifying"
)

// Result describes a migration.
type Result struct {
	From           string        `json:"from"`
	To             string        `json:"to"`
	Keys           int64         `json:"keys"`
	Bytes          int64         `json:"bytes"`          // of the values
	WithTTL        int64         `json:"withTTL"`        // keys that expire; their time starts again
	LeftOut        int64         `json:"leftOut"`        // keys outside of the prefix
	Encrypted      int64         `json:"encrypted"`      // values that the API server has encrypted
	SourceRevision int64         `json:"sourceRevision"` // newest one that the source may have given out
	Revision       int64         `json:"revision"`       // of the target
	Took           time.Duration `json:"-"`
}

const (
	// Prefix is that of the keys that are migrated.
	Prefix = "/registry/"

	// prefixEnd is the first key after them.
	prefixEnd = "/registry0"

	// compactKeys begins the keys of the API server's and of kine's compaction.
	compactKeys = "compact_rev_key"

	// encrypted begins every value that the API server has encrypted (k8s.io/apiserver pkg/server/options/encryptionconfig).
	encrypted = "k8s:enc:"

	// leases is the prefix of the addresses of running servers, which every server writes anew.
	leases = Prefix + "masterleases/"
)

// entry is a key of a datastore.
type entry struct {
	key   string
	value []byte
	ttl   int64 // seconds; 0: it does not expire
}

// source is a datastore that is read as it was at one revision.
type source interface {
	revision() int64 // newest one that clients may have seen
	keys() int64     // about how many
	outside() int64  // keys outside of the prefix that each does not return
	// each calls do with every key. do may keep the value.
	each(ctx context.Context, do func(entry) error) error
	// changed returns a key that has been written after that revision, or nothing.
	changed(ctx context.Context) (key string, err error)
	close() error
}

// target is an empty datastore that is filled.
type target interface {
	put(ctx context.Context, e entry) error
	// each waits until everything is written, and calls do with every key that is there.
	each(ctx context.Context, do func(entry) error) error
	// commit ends the migration, and returns the revision.
	commit(ctx context.Context) (revision int64, err error)
	// abandon ends a migration that has failed, and says what is there now.
	abandon() (left string)
	close() error
}

// migrates tells whether a key is the cluster's. own tells whether it is one that a datastore, or a running
// server, writes for itself.
func migrates(key string) (cluster, own bool) {
	own = strings.HasPrefix(key, compactKeys) || key == Prefix+"health" || key == Prefix+location.Migrating || strings.HasPrefix(key, leases)
	return !own && strings.HasPrefix(key, Prefix), own
}

func isOwn(key string) bool {
	_, own := migrates(key)
	return own
}

// Run copies everything, and compares the target with what it has read from the source. It only reads the
// source. progress may be nil; it is called often.
func Run(ctx context.Context, from, to End, progress func(Progress)) (_ *Result, err error) {
	begin := time.Now()
	if progress == nil {
		progress = func(Progress) {}
	}
	if from.same(to) {
		return nil, fmt.Errorf("%s %s: this is the source itself (%s)", to.Option, to.Where, from.Option)
	}
	src, err := from.read(ctx)
	if err != nil {
		return nil, from.failed(err)
	}
	defer func() { err = errors.Join(err, src.close()) }()
	dst, err := to.fill(ctx, from, src, progress)
	if err != nil {
		return nil, to.failed(err)
	}
	defer func() { err = errors.Join(err, dst.close()) }()

	m := &migration{from: from, to: to, src: src, dst: dst, progress: progress, sums: sums{}}
	m.out = &Result{From: from.Where, To: to.Where, SourceRevision: src.revision()}
	err = m.run(ctx)
	if open := (uncertain{}); errors.As(err, &open) {
		return nil, fmt.Errorf("%w; this was the last step, so it is unknown whether the migration is complete. To see: %s", err, open.see)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; %s", err, dst.abandon())
	}
	m.out.Took = time.Since(begin)
	return m.out, nil
}

// uncertain is an error of the last step, which may have succeeded.
type uncertain struct {
	error
	see string // how the user finds out
}

func (u uncertain) Unwrap() error { return u.error }

// migration is one that runs.
type migration struct {
	from, to End
	src      source
	dst      target
	progress func(Progress)
	sums     sums
	out      *Result
}

func (m *migration) run(ctx context.Context) error {
	if err := m.copy(ctx); err != nil {
		return err
	}
	if m.out.Keys == 0 {
		return fmt.Errorf("%s %s has no keys below %s: there is nothing to migrate", m.from.Option, m.from.Where, Prefix)
	}
	if err := m.verify(ctx); err != nil {
		return err
	}
	key, err := m.src.changed(ctx)
	if err != nil {
		return m.from.failed(err)
	}
	if key != "" {
		return fmt.Errorf("%s %s: a server has written %s meanwhile: stop all servers of the cluster, and migrate again", m.from.Option, m.from.Where, key)
	}
	if m.out.Revision, err = m.dst.commit(ctx); err != nil {
		return m.to.failed(err)
	}
	return nil
}

func (m *migration) copy(ctx context.Context) error {
	at := Progress{Doing: copying, Total: m.src.keys()}
	var writing error
	err := m.src.each(ctx, func(e entry) error {
		at.Done++
		if cluster, own := migrates(e.key); own {
			return nil
		} else if !cluster {
			m.out.LeftOut++
			return nil
		}
		m.sums.add(e)
		m.out.Keys++
		m.out.Bytes += int64(len(e.value))
		if e.ttl > 0 {
			m.out.WithTTL++
		}
		if bytes.HasPrefix(e.value, []byte(encrypted)) {
			m.out.Encrypted++
		}
		writing = m.dst.put(ctx, e)
		at.Bytes = m.out.Bytes
		m.progress(at)
		return writing
	})
	if writing != nil {
		return m.to.failed(writing)
	}
	if err != nil {
		return m.from.failed(err)
	}
	m.out.LeftOut += m.src.outside()
	return nil
}

// verify compares every key at the target with what was read from the source.
func (m *migration) verify(ctx context.Context) error {
	at := Progress{Doing: verifying, Total: m.out.Keys}
	left := m.sums.copy()
	err := m.dst.each(ctx, func(e entry) error {
		if isOwn(e.key) {
			return nil
		}
		at.Done++
		at.Bytes += int64(len(e.value))
		m.progress(at)
		return left.remove(e)
	})
	if err == nil {
		err = left.missing()
	}
	if err != nil {
		return m.to.failed(err)
	}
	return nil
}
