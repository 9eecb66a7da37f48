package keys

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/destination"
	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/internal/setup"
	"github.com/karve-k8s/karve/internal/socket"
	"github.com/karve-k8s/karve/kine/location"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/certificates"
	"github.com/karve-k8s/karve/server/membership"
	"github.com/karve-k8s/karve/server/storage"
)

const (
	newTokenFile = "new-cluster-token-file"
	lost         = "lost"
	etcdPrefix   = "etcd-prefix"
)

// resealTimeout limits what rotateClusterToken does in the datastore. Waiting for the datastore has its own limit.
const resealTimeout = 90 * time.Second

// ClusterToken is `karve cluster-token`.
func ClusterToken() *cli.Command {
	return &cli.Command{
		Name:  "cluster-token",
		Usage: "create and replace the secret of a cluster with several servers on one datastore",
		Subcommands: []*cli.Command{
			{
				Name:  "create",
				Usage: "write a new secret to a file, for --cluster-token-file",
				Description: `It makes the directory, if that is missing. As root, it gives the file to the user who
owns the data directory, so that the service can read it.`,
				ArgsUsage: "FILE",
				Flags:     []cli.Flag{options.Config(), options.DataDir()},
				Before:    options.ReadDataDir,
				Action:    createSecret,
			},
			{
				Name:  "rotate",
				Usage: "encrypt the cluster's keys in the datastore with another secret, or change its encryption configuration",
				Description: `Give each server a new secret before it starts the next time. Servers that run are
not disturbed. As root, it gives the new file to the user who owns the data directory. Without --datastore-endpoint, the datastore is that of the running
server in --data-dir. If the present secret is lost, --lost takes the keys from --data-dir of a server of the cluster.`,
				Flags: append(datastoreFlags(),
					&cli.StringFlag{Name: newTokenFile, Usage: "`FILE` with the secret that replaces the secret of --cluster-token-file"},
					&cli.BoolFlag{Name: lost, Usage: "do without the present secret: the keys in --data-dir, which must be the cluster's, are encrypted again"},
					&cli.StringFlag{Name: apiserver.EncryptionOption, Usage: "`FILE` that replaces the cluster's configuration of the encryption of stored objects; '' removes it"},
				),
				Before: func(c *cli.Context) error {
					if c.IsSet("datastore-endpoint") { // no server is asked
						return options.ReadDataDir(c)
					}
					return options.FindDataDir(c)
				},
				Action: rotateClusterToken,
			},
		},
	}
}

// datastoreFlags choose a cluster's datastore, see [withCluster].
func datastoreFlags() []cli.Flag {
	return []cli.Flag{
		options.Config(), options.DataDir(), options.DatastoreEndpoint(),
		options.DatastoreCAFile(), options.DatastoreCertFile(), options.DatastoreKeyFile(),
		options.ClusterTokenFile(),
		&cli.StringFlag{Name: etcdPrefix, Usage: "`PREFIX` of the cluster's keys in an etcd that several clusters share (default: etcd-prefix in kube-apiserver-arg of the configuration file, or /registry)"},
	}
}

func createSecret(c *cli.Context) error {
	file := c.Args().First()
	setup.Umask()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	to, err := destination.Find(file, destination.Rules{})
	if err == nil {
		err = destination.Act(to, func() error {
			return atomicfile.Create(to, false, func(w io.Writer) error {
				_, err := io.WriteString(w, membership.NewToken())
				return err
			})
		})
	}
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists, and may be the secret of a cluster: name another file", file)
	} else if err != nil {
		return err
	}
	if err := ownership.Give(file, c.String("data-dir")); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.App.Writer, "wrote a new secret to %s: copy it to each server, readable for the server's user only\n", file)
	return err
}

func rotateClusterToken(c *cli.Context) error {
	before, after, encryption, err := readSecrets(c)
	if err != nil {
		return err
	}
	return withCluster(c, func(ctx context.Context, cluster membership.Cluster) error {
		ctx, cancel := context.WithTimeout(ctx, resealTimeout)
		defer cancel()
		var err error
		if c.Bool(lost) {
			dir := c.String("data-dir")
			err = ownership.Act(dir, func() error { return cluster.Reseal(ctx, certificates.Dir(dir), after, encryption) })
		} else {
			err = cluster.Rotate(ctx, before, after, encryption)
		}
		if err != nil {
			return err
		}
		if file := c.String(newTokenFile); file != "" {
			if err := ownership.Give(file, c.String("data-dir")); err != nil {
				return err
			}
		}
		next := "give each server the new file before it starts the next time"
		if c.String(newTokenFile) == "" {
			next = "the servers use the configuration when they start the next time: start them again, one at a time"
		}
		_, err = fmt.Fprintln(c.App.Writer, "done: "+next)
		return err
	})
}

// needsToken is the error of a command that has no way to give what it makes to all servers.
func needsToken(what string) error {
	return fmt.Errorf("--%s: other servers can use this datastore, and would not get the %s: make a token by karve cluster-token create FILE, start each server with --%[1]s FILE, and run this again with it", membership.Option, what)
}

// readClusterToken reads the file that an option names.
func readClusterToken(c *cli.Context, option string) (token *membership.Token, err error) {
	file, dir := c.String(option), c.String("data-dir")
	read := func() (err error) {
		token, err = membership.ReadToken(file)
		return err
	}
	if ownership.Same(dir, file) { // the service's own, which root would refuse
		err = ownership.Act(dir, read)
	} else {
		err = read()
	}
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", option, err)
	}
	return token, nil
}

// readSecrets reads the files that the options name.
func readSecrets(c *cli.Context) (before, after *membership.Token, encryption *[]byte, err error) {
	var problems []error
	token := func(option string) *membership.Token {
		t, err := readClusterToken(c, option)
		if err != nil {
			problems = append(problems, err)
		}
		return t
	}
	switch {
	case c.Bool(lost): // the configuration file may still name the one that is lost
	case c.String(membership.Option) == "":
		problems = append(problems, fmt.Errorf("--%s: name the file with the present secret; if it is lost, run this with --%s on a server of the cluster", membership.Option, lost))
	default:
		before = token(membership.Option)
	}
	switch {
	case c.String(newTokenFile) != "":
		after = token(newTokenFile)
	case c.IsSet(apiserver.EncryptionOption) && !c.Bool(lost):
		after = before
	default:
		problems = append(problems, fmt.Errorf("--%s: name the file with the new secret; karve cluster-token create makes one", newTokenFile))
	}
	if c.IsSet(apiserver.EncryptionOption) {
		encryption = new([]byte)
		if file := c.String(apiserver.EncryptionOption); file != "" {
			if *encryption, err = os.ReadFile(file); err != nil {
				problems = append(problems, fmt.Errorf("--%s: %w", apiserver.EncryptionOption, err))
			}
		}
	}
	return before, after, encryption, errors.Join(problems...)
}

// withCluster calls do with the cluster in the datastore that [datastoreFlags] choose.
func withCluster(c *cli.Context, do func(context.Context, membership.Cluster) error) error {
	where, err := location.Parse(c.String("datastore-endpoint"), "")
	if err != nil {
		return err
	}
	configured, _ := options.ConfiguredEtcdPrefix(c)
	prefix := apiserver.StoragePrefix([]string{etcdPrefix + "=" + cmp.Or(c.String(etcdPrefix), configured)})
	cluster := membership.Cluster{PrivateStorage: where.BuiltIn(), Prefix: prefix, Ways: apiserver.Ways}
	if where.BuiltIn() { // the server that runs has it
		var release func()
		if where.Etcd, release, err = etcdSocket(c.String("data-dir")); err != nil {
			return err
		}
		defer release()
	}
	log, err := logbridge.New(c.App.ErrWriter, "text", "warning")
	if err != nil {
		return err
	}
	output.SilenceKine()
	ctx, cancel := context.WithCancel(c.Context)
	defer cancel()
	part := storage.New(storage.Config{
		Location: where, Log: log, Status: func(string) {},
		CAFile: c.String("datastore-cafile"), CertFile: c.String("datastore-certfile"), KeyFile: c.String("datastore-keyfile"),
	})
	answers := false
	var failed error
	err = part.Run(ctx, func() {
		answers = true
		failed = part.Connection().Ask(ctx, func(ctx context.Context, kv clientv3.KV) error {
			cluster.KV = kv
			return do(ctx, cluster)
		})
		cancel()
	})
	if answers && errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(failed, err)
}

// etcdSocket returns the URL of the etcd API of the server that uses a data directory. It is valid until release is
// called.
func etcdSocket(dataDir string) (url []string, release func(), err error) {
	if _, held, err := directory.Holder(dataDir); err != nil || !held {
		return nil, nil, fmt.Errorf("%w; name a datastore that servers share by --datastore-endpoint", servers.None(dataDir))
	}
	file := filepath.Join(dataDir, "kine.sock")
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%s does not exist: the server in %s is starting, or has another datastore: name that by --datastore-endpoint", file, dataDir)
	}
	short, release, err := control.SocketPath(file)
	return []string{socket.URL(short)}, release, err
}
