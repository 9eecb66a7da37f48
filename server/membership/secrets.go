package membership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/karve-k8s/karve/certs"
)

// Stored says how an object is stored: the provider of the encryption configuration, and its key. An object
// without encryption has the provider identity and no key.
type Stored struct {
	Provider string `json:"provider"`
	Key      string `json:"key,omitempty"`
}

// Identity is the provider that does not encrypt.
const Identity = "identity"

// encrypted begins every value that the API server has encrypted (k8s.io/apiserver
// pkg/server/options/encryptionconfig). The provider, its version and the key's name follow.
const encrypted = "k8s:enc:"

// CheckReadable returns an error that names a Secret in the datastore which a server with an encryption configuration could not
// read, and what to do. file is the configuration's, and need not exist. Unless all Secrets are to be looked at, it looks at one
// page, so that a start takes no longer with many.
func (c Cluster) CheckReadable(ctx context.Context, file string, all bool) error {
	check, err := c.reader(file)
	if err != nil {
		return err
	}
	seen := 0
	enough := errors.New("enough")
	err = c.EachSecret(ctx, func(namespace, name string, how Stored) error {
		if err := check(namespace+"/"+name, how); err != nil {
			return err
		}
		if seen++; seen == page && !all {
			return enough
		}
		return nil
	})
	if errors.Is(err, enough) {
		err = nil
	}
	return err
}

// CheckReadableIn is [Cluster.CheckReadable] for all Secrets among the objects that each calls its argument with.
func (c Cluster) CheckReadableIn(each func(do func(key string, value []byte) bool), file string) error {
	check, err := c.reader(file)
	if err != nil {
		return err
	}
	each(func(key string, value []byte) bool {
		if name, ok := strings.CutPrefix(key, c.Prefix+"secrets/"); ok {
			err = check(name, storedAs(value))
		}
		return err == nil
	})
	return err
}

// reader returns a function that returns an error for a Secret that a server with the encryption configuration in file could not
// read.
func (c Cluster) reader(file string) (check func(secret string, how Stored) error, err error) {
	content, err := os.ReadFile(file)
	missing := errors.Is(err, os.ErrNotExist)
	if err != nil && !missing {
		return nil, err
	}
	ways, err := c.ways(content)
	if err != nil {
		return nil, err
	}
	return func(secret string, how Stored) error {
		if slices.Contains(ways, how) {
			return nil
		}
		lacks, remedy := fmt.Sprintf("its key, %s of %s, is not in %s", how.Key, how.Provider, file), "bring the key back from a backup or another server"
		if how.Provider == Identity {
			lacks, remedy = fmt.Sprintf("it is not encrypted, and %s lacks the provider identity", file), "add identity: {} as the last provider"
		} else if kept := c.keptWith(file, how); kept != "" && missing {
			remedy = fmt.Sprintf("%s has it: rename that, or bring the file back from a backup", kept)
		} else if kept != "" {
			remedy = fmt.Sprintf("%s has it: copy the provider with that key from there to the end of the list, and remove it with karve secrets reencrypt --drop-old afterwards", kept)
		}
		return fmt.Errorf("the Secret %s could not be read: %s: %s", secret, lacks, remedy)
	}, nil
}

// keptWith returns a file beside the encryption configuration that has the key: the commands that replace a configuration keep the former
// one there.
func (c Cluster) keptWith(file string, how Stored) string {
	beside, _ := filepath.Glob(file + ".*") // no pattern is bad, but for one in the directory's name
	for _, kept := range beside {
		content, err := os.ReadFile(kept)
		if err != nil {
			continue
		}
		if ways, err := c.Ways(content); err == nil && slices.Contains(ways, how) {
			return kept
		}
	}
	return ""
}

const page = 100 // Secrets; one has up to a MiB

// EachSecret calls do with the namespace, the name and the way of storage of each Secret.
func (c Cluster) EachSecret(ctx context.Context, do func(namespace, name string, how Stored) error) error {
	prefix := c.Prefix + "secrets/"
	end := clientv3.GetPrefixRangeEnd(prefix)
	for from := prefix; ; {
		got, err := c.KV.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page))
		if err != nil {
			return fmt.Errorf("read the Secrets in the datastore: %w", err)
		}
		for _, kv := range got.Kvs {
			namespace, name, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), prefix), "/")
			if err := do(namespace, name, storedAs(kv.Value)); err != nil {
				return err
			}
			from = string(kv.Key) + "\x00"
		}
		if !got.More {
			return nil
		}
	}
}

func storedAs(value []byte) Stored {
	rest, ok := bytes.CutPrefix(value, []byte(encrypted))
	if !ok {
		return Stored{Provider: Identity}
	}
	fields := bytes.SplitN(rest, []byte(":"), 4)
	if len(fields) < 4 {
		return Stored{Provider: "unknown"}
	}
	return Stored{Provider: string(fields[0]), Key: string(fields[2])}
}

// ways returns how a server with an encryption configuration, or without one, can read Secrets.
func (c Cluster) ways(encryption []byte) ([]Stored, error) {
	if encryption == nil {
		return []Stored{{Provider: Identity}}, nil
	}
	ways, err := c.Ways(encryption)
	if err != nil {
		err = fmt.Errorf("%s: %w", encryptionOption, err)
	}
	return ways, err
}

// checkReadable returns an error if a server with an encryption configuration could not read a Secret which counts. Servers
// that fetch the configuration put it in place of what they have.
func (c Cluster) checkReadable(ctx context.Context, encryption []byte, counts func(Stored) bool) error {
	ways, err := c.ways(encryption)
	if err != nil {
		return err
	}
	return c.EachSecret(ctx, func(namespace, name string, how Stored) error {
		if !counts(how) || slices.Contains(ways, how) {
			return nil
		}
		lacks := "has no key " + how.Key + " of " + how.Provider
		if how.Provider == Identity {
			lacks = "does not read what is not encrypted (identity)"
		}
		return fmt.Errorf("the Secret %s/%s could not be read, because the configuration %s: name a file that has all keys by %s", namespace, name, lacks, encryptionOption)
	})
}

// Sealed reports whether the record has the keys of the cluster, so that servers share them.
func (c Cluster) Sealed(ctx context.Context) (bool, error) {
	r, _, err := c.read(ctx)
	return err == nil && r != nil && len(r.Sealed) > 0, err
}

// Encryption returns the cluster's encryption configuration, nil if it has none. sealed says whether the record has
// keys: if not, there is no token, and the configuration is the server's.
func (c Cluster) Encryption(ctx context.Context, token *Token) (content []byte, sealed bool, err error) {
	r, _, err := c.read(ctx)
	if err != nil || r == nil || len(r.Sealed) == 0 {
		return nil, false, err
	}
	if token == nil {
		return nil, true, fmt.Errorf("the cluster's encryption configuration is in the datastore: name the file with its token by --%s", Option)
	}
	m, err := c.open(r, token)
	if err != nil {
		return nil, true, err
	}
	return m.Encryption, true, nil
}

// Reseal encrypts the keys in a directory with a token, in place of a record whose token is lost. The keys must be
// those of the record. The encryption configuration is that which the server has fetched, unless encryption, a pointer to the
// content of a file, replaces it. It must have the keys of all Secrets: a server that was away has an old one.
func (c Cluster) Reseal(ctx context.Context, dir string, after *Token, encryption *[]byte) error {
	r, revision, err := c.read(ctx)
	if err != nil {
		return err
	}
	if r == nil {
		return fmt.Errorf("the datastore has no %s: start a server that has the keys with --%s", c.key(), Option)
	}
	local, err := certs.ReadShared(dir)
	if err != nil {
		return err
	}
	switch differing, lacking, err := compare(local, r); {
	case err != nil:
		return err
	case len(differing) > 0:
		return fmt.Errorf("%s %s not the cluster's: run this on one of its servers, with the server's --data-dir", files(dir, differing), are(differing))
	case len(lacking) > 0:
		return fmt.Errorf("%s %s missing: run this on a server that has all of the cluster's keys", files(dir, lacking), are(lacking))
	}
	m := Material{Shared: local, rotations: r.rotations}
	if err := m.endSteps(); err != nil {
		return err
	}
	if encryption != nil {
		m.Encryption = *encryption
	} else if m.Encryption, err = os.ReadFile(certs.EncryptionFile(dir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := c.checkReadable(ctx, m.Encryption, func(Stored) bool { return true }); err != nil {
		return err
	}
	value, err := seal(m, after)
	if err != nil {
		return fmt.Errorf("encrypt the cluster's keys: %w", err)
	}
	return c.replace(ctx, value, revision)
}

// Rekey records the keys in a directory as the cluster's, which [certs.Store.Replace] has put in place of those of the record. No other
// server may have the former ones.
func (c Cluster) Rekey(ctx context.Context, dir string) error {
	r, revision, err := c.read(ctx)
	if err != nil || r == nil {
		return err
	}
	local, err := certs.ReadShared(dir)
	if err != nil {
		return err
	}
	if err := c.refusal(ctx, r, Server{Certs: certs.Config{Dir: dir}}, local); err != nil {
		return err
	}
	value, err := seal(Material{Shared: local}, nil)
	if err != nil {
		return err
	}
	return c.replace(ctx, value, revision)
}
