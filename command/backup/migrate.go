package backup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/internal/shell"
	"github.com/karve-k8s/karve/kine/location"
	"github.com/karve-k8s/karve/kine/migrate"
)

func datastoreMigrate(c *cli.Context) error {
	from, fromErr := migrationSource(c)
	to, toErr := migrationTarget(c)
	if err := errors.Join(fromErr, toErr, checkPrefix(c)); err != nil {
		return err
	}
	show := output.Report(c)
	output.SilenceKine()
	var done *migrate.Result
	err := asOwnerOf(migrationOwner(to.Dir, from.Dir, c.String("data-dir")), func() (err error) {
		done, err = migrate.Run(c.Context, from, to, func(p migrate.Progress) { show(progressText(p)) })
		return err
	})
	if err != nil {
		return err
	}
	next, notes := nextServer(c, to), migrationNotes(c, from, to, done.Encrypted)
	return output.Show(c, struct {
		*migrate.Result
		Next  string   `json:"next"`
		Notes []string `json:"notes"`
	}{done, next, notes}, func(w io.Writer) {
		fmt.Fprintf(w, "migrated %d keys (%d bytes, %d keys with a TTL) from %s to %s\n", done.Keys, done.Bytes, done.WithTTL, done.From, done.To)
		fmt.Fprintln(w, "every key and value was read again and is the same")
		fmt.Fprintf(w, "the revision was %d, and is %d now\n", done.SourceRevision, done.Revision)
		if done.LeftOut > 0 {
			fmt.Fprintf(w, "%d keys that are not below %s were left out\n", done.LeftOut, migrate.Prefix)
		}
		fmt.Fprintf(w, "Next:\n  %s\n", next)
		for _, note := range notes {
			fmt.Fprintf(w, "Note: %s\n", note)
		}
	})
}

func progressText(p migrate.Progress) string {
	if p.Bytes == 0 {
		return fmt.Sprintf("%s: %d of %d", p.Doing, p.Done, p.Total)
	}
	return fmt.Sprintf("%s: %d of %d keys, %.1f MB", p.Doing, p.Done, p.Total, float64(p.Bytes)/1e6)
}

// asOwnerOf acts as the owner of a directory, if there is one.
func asOwnerOf(dir string, body func() error) error {
	if dir == "" {
		return body()
	}
	return ownership.Act(dir, body)
}

// migrationOwner is the directory whose owner migrates: the built-in datastore that is filled, or the nearest
// directory above it if that is not root's, or else the datastore that is read, or the data directory.
func migrationOwner(to, from, dataDir string) string {
	if to != "" {
		near := to
		for !options.Exists(near) && near != filepath.Dir(near) {
			near = filepath.Dir(near)
		}
		if _, foreign, err := ownership.Foreign(near); near == to || err == nil && foreign {
			return near
		}
	}
	for _, dir := range []string{from, dataDir} {
		if dir != "" && options.Exists(dir) {
			return dir
		}
	}
	return ""
}

// checkPrefix refuses a cluster whose keys are elsewhere.
func checkPrefix(c *cli.Context) error {
	if prefix, file := options.ConfiguredEtcdPrefix(c); prefix != "" && path.Join("/", prefix)+"/" != migrate.Prefix {
		return fmt.Errorf("--config %s: kube-apiserver-arg has etcd-prefix=%s: only keys below %s can be migrated; copy this cluster with the tools of etcd", file, prefix, migrate.Prefix)
	}
	return nil
}

func migrationSource(c *cli.Context) (migrate.End, error) {
	option, endpoint := "--from", c.String("from")
	if endpoint == "" {
		option, endpoint = "--datastore-endpoint", c.String("datastore-endpoint")
	}
	if endpoint == "" {
		option = "--data-dir"
	}
	e := migrate.End{
		Option: option, FileOptions: "--datastore-cafile, --datastore-certfile, --datastore-keyfile",
		CAFile: c.String("datastore-cafile"), CertFile: c.String("datastore-certfile"), KeyFile: c.String("datastore-keyfile"),
	}
	variable := options.MigrateFrom
	if option != "--from" {
		variable = "KARVE_DATASTORE_ENDPOINT"
	}
	if err := secretOnCommandLine(option, endpoint, variable); err != nil {
		return e, err
	}
	return migrationEnd(c, e, endpoint)
}

func migrationTarget(c *cli.Context) (migrate.End, error) {
	e := migrate.End{
		Option: "--to", FileOptions: "--to-cafile, --to-certfile, --to-keyfile",
		CAFile: c.String("to-cafile"), CertFile: c.String("to-certfile"), KeyFile: c.String("to-keyfile"),
	}
	endpoint := c.String("to")
	if endpoint == "" {
		return e, fmt.Errorf("--to is missing: the URL of the datastore to migrate to, such as postgres://USER@HOST/DATABASE, or sqlite:// for the built-in one in the data directory (the variable is %s)", options.MigrateTo)
	}
	if err := secretOnCommandLine("--to", endpoint, options.MigrateTo); err != nil {
		return e, err
	}
	return migrationEnd(c, e, endpoint)
}

// migrationEnd completes an end with what an endpoint names.
func migrationEnd(c *cli.Context, e migrate.End, endpoint string) (migrate.End, error) {
	location, err := location.ParseAs(e.Option, endpoint)
	if err != nil {
		return e, err
	}
	e.Database, e.Etcd, e.Where = location.External, location.Etcd, location.String()
	if location.BuiltIn() {
		dir, err := location.DirOnDisk(c.String("data-dir"))
		if err != nil {
			return e, errors.New(strings.ReplaceAll(err.Error(), "--datastore-endpoint", e.Option))
		}
		e.Dir = options.Absolute(dir)
		e.Where = "sqlite://" + e.Dir
	}
	var problems []error
	for i, file := range []string{e.CAFile, e.CertFile, e.KeyFile} {
		if file == "" {
			continue
		}
		option := strings.Split(e.FileOptions, ", ")[i]
		if e.Option == "--to" && location.BuiltIn() {
			problems = append(problems, fmt.Errorf("%s %s: %s is the built-in datastore, which needs no TLS", option, file, e.Where))
		} else if _, err := os.Stat(file); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", option, err))
		}
	}
	return e, errors.Join(problems...)
}

// secretOnCommandLine refuses a URL with a password that does not come from a variable or a file.
func secretOnCommandLine(option, endpoint, variable string) error {
	if !slices.ContainsFunc(os.Args, func(arg string) bool { return arg == endpoint || strings.HasSuffix(arg, "="+endpoint) }) {
		return nil
	}
	if !withPassword.MatchString(endpoint) {
		return nil
	}
	return fmt.Errorf("%s: other users can see a password on the command line: put the URL into the variable %s (for PostgreSQL, ~/.pgpass works too)", option, variable)
}

// withPassword matches URLs with a password, and others that look like one.
var withPassword = regexp.MustCompile(`^[a-z]+://[^:@]*:[^@]+@|[?&]password=`)

// nextServer is the command line of a server on the target, without secrets.
func nextServer(c *cli.Context, to migrate.End) string {
	dir := options.Absolute(c.String("data-dir"))
	line := "karve server"
	if file := c.String("config"); file != "" {
		line += " --config " + shell.Quoted(options.Absolute(file))
	}
	line += " --data-dir " + shell.Quoted(dir)
	switch {
	case to.Dir != "" && filepath.Clean(to.Dir) == filepath.Clean(dir):
		if c.String("datastore-endpoint") != "" { // the one that was left
			line += " --datastore-endpoint sqlite://"
		}
	case os.Getenv(options.MigrateTo) == c.String("to"):
		line = fmt.Sprintf(`KARVE_DATASTORE_ENDPOINT="$%s" `, options.MigrateTo) + line
	default:
		line += " --datastore-endpoint " + shell.Quoted(c.String("to"))
	}
	for _, f := range [][2]string{{"cafile", to.CAFile}, {"certfile", to.CertFile}, {"keyfile", to.KeyFile}} {
		if f[1] != "" {
			line += " --datastore-" + f[0] + " " + shell.Quoted(options.Absolute(f[1]))
		}
	}
	return line
}

// migrationNotes say how a server could start with the old cluster, and what it needs for the new one.
func migrationNotes(c *cli.Context, from, to migrate.End, encrypted int64) []string {
	notes := []string{}
	if file := options.ConfigFileWith(c, "datastore-endpoint"); file != "" {
		notes = append(notes, fmt.Sprintf("%s has datastore-endpoint: remove it there, or name %s, and do the same with datastore-cafile, datastore-certfile and datastore-keyfile. Otherwise, a start without the command line above runs the old cluster", file, to.Where))
	}
	if from.Dir != "" && to.Dir == "" {
		notes = append(notes, fmt.Sprintf("%s stays as it is. A start without the new datastore-endpoint runs the old cluster: put it into the configuration of every service", filepath.Join(from.Dir, datastore.EngineFile)))
	}
	if encrypted > 0 {
		notes = append(notes, fmt.Sprintf("%d values are encrypted: servers need the key, in certs/encryption-provider-config.yaml of the data directory or in the file of --encryption-provider-config; with --cluster-token-file, the server that has it gives it to the others", encrypted))
	}
	return notes
}
