package datadir

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/membership"
)

// CheckKeys returns the error with which a server would refuse the database in a file, because the keys in its
// data directory are not those of the cluster. s has its options; the directory of its certificates is set here.
func CheckKeys(ctx context.Context, dataDir, file, prefix, tokenFile string, s membership.Server) error {
	s.Certs.Dir = filepath.Join(dataDir, "certs")
	if tokenFile != "" {
		s.Token = &membership.Token{} // nothing is decrypted
	}
	return membership.Cluster{KV: membership.File(file), Prefix: prefix, Alone: true}.Check(ctx, s)
}

// keysOf is CheckKeys for a command, which does not know all options of the server.
func keysOf(c *cli.Context, file string) error {
	prefix, _ := options.ConfiguredEtcdPrefix(c)
	return CheckKeys(c.Context, Absolute(c.String("data-dir")), file, apiserver.StoragePrefix([]string{"etcd-prefix=" + prefix}),
		c.String(membership.Option), membership.Server{NewAuthorities: c.String(membership.NewAuthoritiesOption), OtherFrontProxy: true})
}

// inPlace is the error of a command that has put data in place with which no server will start.
func inPlace(wrong error) error {
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
		local, err := certs.ReadShared(filepath.Join(Absolute(c.String("data-dir")), "certs"))
		if err != nil {
			return err
		}
		if len(local) > 0 || Exists(filepath.Join(lock.Dir(), datastore.EngineFile)) {
			return fmt.Errorf("nothing was changed, because no server would start with these data: %w", wrong)
		}
	}
	if err := replace(); err != nil {
		return err
	}
	return inPlace(wrong)
}
