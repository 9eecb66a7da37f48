// Package backup has the commands about a cluster's data: backups, resets and the datastore. If a server runs, they ask it for what
// only the server can do.
package backup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/destination"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/server/snapshots"
	"github.com/karve-k8s/karve/snapshot"
)

// Backup is `karve backup`.
func Backup() *cli.Command {
	open := []cli.Flag{
		passphraseFlag("`FILE` with the passphrase of a sealed backup; - is standard input"),
		&cli.StringFlag{Name: "identity", Usage: "`FILE` with the age identity of a sealed backup"},
	}
	return &cli.Command{
		Name:  "backup",
		Usage: "back up the whole cluster to a file, and rebuild it from one",
		Subcommands: []*cli.Command{
			{
				Name: "create", ArgsUsage: "[FILE]",
				Usage: "write a backup, and verify it",
				Description: "FILE is DATA-DIR/" + snapshots.BackupsDir + "/karve-TIME" + snapshots.BackupSuffix + " by default; - is standard output. A server may run. The backup has everything that\n" +
					"makes the cluster this cluster: objects, certificates, keys, the keys of encrypted\n" +
					"Secrets, SSH keys, manifests and the configuration file. Whoever can read it is an\n" +
					"administrator. karve backup restore, karve reset, karve datastore restore and\n" +
					"karve server --fork-from take it.\n" +
					"With --recipient or --passphrase-file it is sealed, in the format of age.",
				Flags: createFlags(), Before: options.FindDataDir,
				Action: func(c *cli.Context) error { return createBackup(c, inBackups, false) },
			},
			{
				Name: "verify", ArgsUsage: "FILE", Usage: "check that a backup is whole, and print what is in it",
				Flags: withDataDir(append(open, output.Flag())...), Before: options.ReadDataDir, Action: func(c *cli.Context) error { return withBackup(c, verifyBackup) },
			},
			{
				Name: "restore", ArgsUsage: "FILE", Usage: "rebuild the cluster of a backup in an empty data directory",
				Description: "Nodes, kubeconfigs and tokens of the cluster remain valid. The server must not run, and its\n" +
					"data directory must not have a cluster. No file is replaced. If it is interrupted, the same\n" +
					"command finishes it. karve datastore restore and karve reset take an existing cluster\n" +
					"back instead.",
				Flags: withDataDir(open...), Action: func(c *cli.Context) error { return withBackup(c, rebuildFrom) },
				Before: func(c *cli.Context) error {
					if config := c.String("config"); config != "" && !options.Exists(config) {
						return nil // it may be in the backup
					}
					return options.ReadDataDir(c)
				},
			},
		},
	}
}

// Snapshot is `karve snapshot`.
func Snapshot() *cli.Command {
	return &cli.Command{
		Name: "snapshot", ArgsUsage: "[FILE]",
		Usage:       "is karve backup create with another default for FILE: where karve reset finds it",
		Description: "FILE is DATA-DIR/" + snapshot.FileName + " by default.",
		Flags:       createFlags(), Before: options.FindDataDir,
		Action: func(c *cli.Context) error { return createBackup(c, asSnapshot, false) },
	}
}

// databaseBackup is `karve datastore backup`. karve install of this and of other releases calls it, and scripts of users'. Its file has no keys, and
// earlier releases can restore it.
func databaseBackup() *cli.Command {
	return &cli.Command{
		Name: "backup", ArgsUsage: "FILE", Hidden: true,
		Usage:       "write a copy of the database alone",
		Description: "karve backup create writes a backup of the whole cluster, from which a lost machine can be\nrebuilt.",
		Flags:       withDataDir(overwriteFlag()), Before: options.FindDataDir,
		Action: func(c *cli.Context) error {
			return createBackup(c, nil, true)
		},
	}
}

func createFlags() []cli.Flag {
	return withDataDir(overwriteFlag(),
		&cli.StringSliceFlag{Name: "recipient", Usage: "`KEY` of age, the public one, to seal the backup for. Repeat it for several."},
		passphraseFlag("`FILE` with a passphrase to seal the backup with; - is standard input"))
}

func overwriteFlag() cli.Flag {
	return &cli.BoolFlag{Name: "overwrite", Usage: "replace the file if it exists"}
}

func passphraseFlag(usage string) cli.Flag {
	return &cli.StringFlag{Name: "passphrase-file", Usage: usage}
}

func withDataDir(flags ...cli.Flag) []cli.Flag {
	return append([]cli.Flag{options.Config(), options.DataDir(), options.DatastoreEndpoint()}, flags...)
}

// createBackup writes a backup to the FILE that is named, or to what byDefault returns; with databaseOnly, only its database.
func createBackup(c *cli.Context, byDefault func(dir string) (string, error), databaseOnly bool) error {
	dir := options.Absolute(c.String("data-dir"))
	if !options.Exists(dir) {
		return servers.None(dir)
	}
	name := c.Args().First()
	var err error
	if name == "" {
		if name, err = byDefault(dir); err != nil {
			return err
		}
	}
	file, err := destinationOf(c, name)
	if err != nil {
		return err
	}
	recipients, err := recipientsOf(c)
	if err != nil {
		return err
	}
	copyTo, sealed := plainly, ""
	if databaseOnly {
		copyTo = onlyDatabase
	} else if len(recipients) > 0 {
		copyTo, sealed = sealFor(recipients), ", sealed"
	}
	show := output.Report(c)
	var info *snapshot.Info
	err = place(c, file, func(temp *directory.TempDir) (err error) {
		info, err = makeBackup(c, dir, temp, databaseOnly, show)
		return err
	}, copyTo)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := recordBackup(c, file, info); err != nil { // the backup itself is complete
		fmt.Fprintf(c.App.ErrWriter, "karve: %v (karve status will not show this backup)\n", err)
	}
	to, called := c.App.Writer, file
	if file == destination.Stdout {
		to, called = c.App.ErrWriter, "standard output"
	}
	fmt.Fprintf(to, "wrote and verified %s: %d keys at revision %d%s\n", called, info.Keys, info.Revision, sealed)
	return nil
}

// plainly copies a file as it is. It shares blocks where the file system can.
func plainly(w io.Writer, r io.Reader) error {
	_, err := io.Copy(w, r)
	return err
}

// onlyDatabase copies the database of a backup that is known to be whole.
func onlyDatabase(w io.Writer, r io.Reader) error {
	s, err := snapshot.Read(r)
	if err != nil {
		return err
	}
	return plainly(w, s.Database())
}

// inBackups is the default FILE of karve backup create.
func inBackups(dir string) (string, error) {
	backups := filepath.Join(dir, snapshots.BackupsDir)
	err := ownership.Act(dir, func() error { return atomicfile.MakeDir(backups) })
	if errors.Is(err, syscall.EROFS) {
		err = directory.ReadOnly(dir)
	}
	return filepath.Join(backups, "karve-"+time.Now().UTC().Format(directory.Stamp)+snapshots.BackupSuffix), err
}

// asSnapshot is the default FILE of karve snapshot and karve reset.
func asSnapshot(dir string) (string, error) { return filepath.Join(dir, snapshot.FileName), nil }

// recordBackup records a backup for `karve status`.
func recordBackup(c *cli.Context, file string, info *snapshot.Info) error {
	if file == destination.Stdout { // nobody knows where it is
		return nil
	}
	path, err := engineFile(c)
	if err != nil {
		return err
	}
	made := &backup.Result{From: path, To: file, Revision: info.Revision}
	if stat, err := os.Stat(file); err == nil {
		made.Bytes = stat.Size()
	}
	return ownership.Act(filepath.Dir(path), func() error { return backup.SetLast(made, time.Now()) })
}

// makeBackup makes a verified backup as the file of temp, by the server, if one runs.
func makeBackup(c *cli.Context, dir string, temp *directory.TempDir, databaseOnly bool, doing func(string)) (*snapshot.Info, error) {
	doing("writing")
	return snapshot.MakeVerified(c.Context, temp, func(w io.Writer, scratch string) error {
		defer doing("verifying")
		path, missing := engineFile(c)
		named := path
		if c.String("datastore-endpoint") == "" {
			named = ""
		}
		asked, err := snapshot.FromServer(c.Context, dir, named, w)
		switch {
		case errors.Is(err, fs.ErrPermission):
			return fmt.Errorf("%w (run this as root or the server's user)", err)
		case asked || err != nil:
			return err
		case missing != nil:
			return missing
		}
		from := snapshot.Source{StoreDir: filepath.Dir(path)}
		if !databaseOnly {
			from.DataDir, from.Files, from.ManifestsDir = dir, options.ConfiguredFiles(c), options.ConfiguredManifestsDir(c)
		}
		_, err = snapshot.Write(c.Context, from, scratch, w)
		return err
	})
}
