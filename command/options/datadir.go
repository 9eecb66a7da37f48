package options

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/internal/configfile"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/membership"
)

// Config is --config.
func Config() cli.Flag {
	return text(nil, general, "config", "", "`FILE` with options in YAML (default: "+DefaultFile+", if it exists)").Flag
}

// DataDir is --data-dir.
func DataDir() cli.Flag {
	return text(nil, general, "data-dir", DefaultDataDir(), "`DIR` for state, certificates and the admin's kubeconfig").Flag
}

// DatastoreEndpoint is --datastore-endpoint.
func DatastoreEndpoint() cli.Flag {
	return text(nil, storage, "datastore-endpoint", "", "`URL` of an external datastore: PostgreSQL, MySQL or etcd (default: the built-in one in the data directory). "+
		"One of sqlite://DIR?durability=full|relaxed|memory&cache=BYTES, memory://, postgres://USER:PASSWORD@HOST/DATABASE, mysql://USER:PASSWORD@tcp(HOST:PORT)/DATABASE, and http(s)://host:port,… of an etcd. "+
		"Other users can see the command line: give a password in the variable or the configuration file instead.").Flag
}

// DatastoreCAFile is --datastore-cafile.
func DatastoreCAFile() cli.Flag {
	return text(nil, storage, "datastore-cafile", "", "`FILE` with the CA certificate of the external datastore").Flag
}

// DatastoreCertFile is --datastore-certfile.
func DatastoreCertFile() cli.Flag {
	return text(nil, storage, "datastore-certfile", "", "`FILE` with a client certificate for it").Flag
}

// DatastoreKeyFile is --datastore-keyfile.
func DatastoreKeyFile() cli.Flag {
	return text(nil, storage, "datastore-keyfile", "", "`FILE` with the private key of --datastore-certfile").Flag
}

// MigrateFrom and MigrateTo are the variables of the two URLs of karve datastore migrate.
const (
	MigrateFrom = "KARVE_MIGRATE_FROM"
	MigrateTo   = "KARVE_MIGRATE_TO"
)

// Migration are the options of karve datastore migrate.
func Migration() []cli.Flag {
	return []cli.Flag{
		DatastoreCAFile(), DatastoreCertFile(), DatastoreKeyFile(),
		&cli.StringFlag{Name: "from", EnvVars: []string{MigrateFrom}, Usage: "`URL` of the datastore to migrate from, of which only the keys below /registry are copied (default: --datastore-endpoint, or the built-in one in the data directory)"},
		&cli.StringFlag{Name: "to", EnvVars: []string{MigrateTo}, Usage: "`URL` of the datastore to migrate to: sqlite:// (the built-in one in the data directory), sqlite://DIR, postgres://…, mysql://…, or http(s)://host:port,… of an etcd. A URL with a password belongs in the variable"},
		&cli.StringFlag{Name: "to-cafile", Usage: "`FILE` with the CA certificate of --to; for --from: --datastore-cafile and so on"},
		&cli.StringFlag{Name: "to-certfile", Usage: "`FILE` with a client certificate for --to"},
		&cli.StringFlag{Name: "to-keyfile", Usage: "`FILE` with the private key of --to-certfile"},
	}
}

// ClusterTokenFile is --cluster-token-file.
func ClusterTokenFile() cli.Flag {
	return text(nil, storage, membership.Option, "", "`FILE` with the cluster token, a secret of the servers that share a datastore. No other user may read it. The first server stores the cluster's keys in the datastore, encrypted with it, and the others fetch them. karve cluster-token create makes one.").Flag
}

// NewAuthorities is --new-authorities.
func NewAuthorities() cli.Flag {
	return text(nil, storage, membership.NewAuthoritiesOption, "", "`ID` of a cluster whose keys are lost or to be replaced: it goes on with those in the certs directory, and with new ones in place of missing ones. A start that is refused for its keys names the ID. Kubeconfigs, tokens and node certificates that the old keys have signed are refused from then on. The option has this effect once, and can stay.").Flag
}

// SSHKeyFile is --ssh-keyfile.
func SSHKeyFile() cli.Flag {
	return text(nil, reaching, "ssh-keyfile", "", "`FILE` with the private key for --ssh-user, which no other user may read (default: one that the server makes in its data directory; karve ssh public-key prints its public half)").Flag
}

// SSHKnownHosts is --ssh-known-hosts.
func SSHKnownHosts() cli.Flag {
	return text(nil, reaching, "ssh-known-hosts", "", "`FILE` with the pinned host keys (default: ssh/known_hosts in the data directory). The first key of a node is pinned there, and no other is accepted afterwards.").Flag
}

// DefaultDataDir is /var/lib/karve for root, and in the XDG data directory
// (https://specifications.freedesktop.org/basedir-spec) for everybody else.
func DefaultDataDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/karve"
	}
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "karve")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".local", "share", "karve")
}

// UsualDataDirs are the directories in which a server is looked for that nothing names.
func UsualDataDirs() []string {
	return slices.DeleteFunc([]string{DefaultDataDir(), "/var/lib/karve"}, func(dir string) bool { return dir == "" })
}

// CheckListed refuses a path that KUBECONFIG or PATH would take for several. kubectl finds no file then and
// uses its default address, where there may be another cluster.
func CheckListed(path string) error {
	if abs, err := filepath.Abs(path); err == nil && strings.ContainsRune(abs, filepath.ListSeparator) {
		return fmt.Errorf("%s has a %q, which separates the files of KUBECONFIG: choose another directory", abs, filepath.ListSeparator)
	}
	return nil
}

// inDataDir are the options of the server that other commands take from its configuration file.
var inDataDir = []string{"data-dir", "datastore-endpoint", "datastore-cafile", "datastore-certfile", "datastore-keyfile", membership.Option, membership.NewAuthoritiesOption, "ssh-keyfile"}

// ConfiguredSSHUser is --ssh-user of the server in the configuration file; empty if it names none.
func ConfiguredSSHUser(c *cli.Context) string {
	_, values := configFile(c)
	return values.Last("ssh-user")
}

// ConfiguredEtcdPrefix is the prefix of the API server's keys in the configuration file, and the file. Both are
// empty if it names none.
func ConfiguredEtcdPrefix(c *cli.Context) (prefix, file string) {
	file, values := configFile(c)
	if prefix = apiserver.LastArg(values.All("kube-apiserver-arg"), "etcd-prefix"); prefix == "" {
		return "", ""
	}
	return prefix, file
}

// ConfigPath is the absolute path of the configuration file, whether it exists or not.
func ConfigPath(c *cli.Context) string {
	path, _ := configFile(c)
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// ConfiguredFiles are the absolute paths of the configuration file and of the encryption configuration that it names, for
// backups while no server runs. A path in it that is not absolute depends on the server's working directory, and is left out.
func ConfiguredFiles(c *cli.Context) []string {
	_, values := configFile(c)
	named := append(values.All(apiserver.EncryptionOption), apiserver.LastArg(values.All("kube-apiserver-arg"), apiserver.EncryptionOption))
	return append([]string{ConfigPath(c)}, slices.DeleteFunc(named, func(file string) bool { return !filepath.IsAbs(file) })...)
}

// ConfiguredManifestsDir is --manifests-dir of the server in the configuration file; empty if it names none, or only relative to the server's
// working directory.
func ConfiguredManifestsDir(c *cli.Context) string {
	_, values := configFile(c)
	if dir := values.Last("manifests-dir"); filepath.IsAbs(dir) {
		return filepath.Clean(dir)
	}
	return ""
}

// DataDirIn is the data directory that the text of a configuration file names; empty if it names none.
func DataDirIn(text []byte) string {
	values, _ := configfile.Parse(text) // nothing is refused here
	return values.Last("data-dir")
}

// configFile is the path of the configuration file, and what it has, if it can be read.
func configFile(c *cli.Context) (path string, values configfile.Options) {
	_, values, _ = loadConfig(c, DefaultFile) // the error has been reported
	return cmp.Or(c.String("config"), DefaultFile), values
}

// ConfigFileWith is the path of the configuration file, if it can be read and sets an option, and otherwise
// empty.
func ConfigFileWith(c *cli.Context, option string) string {
	path, values := configFile(c)
	if len(values.All(option)) == 0 {
		return ""
	}
	return path
}

// CheckDataDir returns an error if a command that needs a data directory has none, which would mean the working directory.
func CheckDataDir(c *cli.Context) error {
	if !slices.Contains(Names(c.Command.Flags), "data-dir") || c.String("data-dir") != "" || Collects(c.Command) || c.Bool("all") {
		return nil
	}
	return server.NoDataDir()
}

// FindDataDir is [ReadDataDir] for commands about a cluster that exists: if nothing names a data directory and the default
// one does not exist, [servers.Choose] does. A server in the default one may have been stopped.
func FindDataDir(c *cli.Context) error {
	if err := findDataDir(c); err != nil {
		return err
	}
	return ownership.RefuseFIFOs(c.String("data-dir"))
}

func findDataDir(c *cli.Context) error {
	if err := ReadDataDir(c); err != nil || c.IsSet("data-dir") {
		return err
	}
	if _, err := os.Stat(c.String("data-dir")); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	dir, err := servers.Choose(servers.Own, UsualDataDirs()...)
	if dir != "" {
		err = c.Set("data-dir", dir)
	}
	return err
}

// ReadDataDir takes data-dir, and the others of inDataDir for the commands that have them, from the server's configuration file, and leaves the other options in it alone.
func ReadDataDir(c *cli.Context) error {
	_, values, err := loadConfig(c, DefaultFile)
	if err != nil {
		return err
	}
	known := Names(c.Command.Flags)
	for _, v := range values {
		if !slices.Contains(inDataDir, v.Name) || !slices.Contains(known, v.Name) {
			continue
		}
		if len(v.Values) > 0 && !c.IsSet(v.Name) {
			if err := c.Set(v.Name, values.Last(v.Name)); err != nil {
				return err
			}
		}
	}
	if info, err := os.Stat(c.String("data-dir")); err == nil && !info.IsDir() {
		return fmt.Errorf("--data-dir %s is a file: name a directory", c.String("data-dir"))
	}
	return nil
}
