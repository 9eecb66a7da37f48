package backup

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/urfave/cli/v2"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/membership"
)

// keysOf returns the error with which a server would refuse the database in a file, because the keys in its
// data directory are not those of the cluster.
func keysOf(c *cli.Context, file string) error {
	s := membership.Server{NewAuthorities: c.String(membership.NewAuthoritiesOption), OtherFrontProxy: true}
	s.Certs.Dir = filepath.Join(options.Absolute(c.String("data-dir")), "certs")
	if c.String(membership.Option) != "" {
		s.Token = &membership.Token{} // nothing is decrypted
	}
	return clusterOf(c, membership.File(file)).Check(c.Context, s)
}

// clusterOf is the cluster of the configured server, in a datastore that no server uses.
func clusterOf(c *cli.Context, kv clientv3.KV) membership.Cluster {
	prefix, _ := options.ConfiguredEtcdPrefix(c)
	return membership.Cluster{KV: kv, Prefix: apiserver.StoragePrefix([]string{"etcd-prefix=" + prefix}), PrivateStorage: true, Ways: apiserver.Ways}
}

// withEncryption calls check with the path of the encryption configuration of the configured server. If there is none, an argument of the
// server's may name one, and nothing is checked.
func withEncryption(c *cli.Context, check func(file string) error) error {
	file := certs.EncryptionFile(filepath.Join(options.Absolute(c.String("data-dir")), "certs"))
	if files := options.ConfiguredFiles(c); len(files) > 1 {
		file = files[len(files)-1]
	}
	if !options.Exists(file) {
		return nil
	}
	return check(file)
}

// unusable is the error of a restore whose data no server will start with.
func unusable(wrong error) error {
	if !errors.Is(wrong, membership.ErrOther) { // a start reports every other problem
		return nil
	}
	return fmt.Errorf("the data are in place, but no server will start with them: %w", wrong)
}

// withKeys replaces the database in a locked directory by that in a file, if a server would accept that. In a
// data directory without any keys and without a database it does so in any case, because the data may come before
// the keys, and says what is missing.
func withKeys(c *cli.Context, lock *directory.Lock, file string, replace func() error) error {
	if id := c.String(membership.NewAuthoritiesOption); membership.CheckID(id) != nil {
		return fmt.Errorf("--%s %s: %w", membership.NewAuthoritiesOption, id, membership.CheckID(id))
	}
	wrong := keysOf(c, file)
	if errors.Is(wrong, membership.ErrOther) {
		local, err := certs.ReadShared(filepath.Join(options.Absolute(c.String("data-dir")), "certs"))
		if err != nil {
			return err
		}
		if len(local) > 0 || options.Exists(filepath.Join(lock.Dir(), datastore.EngineFile)) {
			return fmt.Errorf("nothing was changed, because no server would start with these data: %w", wrong)
		}
	}
	if wrong == nil {
		err := withEncryption(c, func(encryption string) error {
			return clusterOf(c, membership.File(file)).CheckReadable(c.Context, encryption, true)
		})
		if err != nil {
			return fmt.Errorf("nothing was changed, because no server would start with these data: %w", err)
		}
	}
	if err := replace(); err != nil {
		return err
	}
	return unusable(wrong)
}
