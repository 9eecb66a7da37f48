package datadir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"filippo.io/age"
	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/servers"
	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/destination"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/server/snapshots"
	"github.com/karve-k8s/karve/snapshot"
)

const (
	backupsDir   = snapshots.BackupsDir
	backupSuffix = snapshots.BackupSuffix
)

// Backup is `karve backup`.
func Backup() *cli.Command {
	passphrase := func(usage string) cli.Flag { return &cli.StringFlag{Name: "passphrase-file", Usage: usage} }
	open := []cli.Flag{
		passphrase("`FILE` with the passphrase of a sealed backup; - is standard input"),
		&cli.StringFlag{Name: "identity", Usage: "`FILE` with the age identity of a sealed backup"},
	}
	with := func(flags ...cli.Flag) []cli.Flag {
		return append([]cli.Flag{options.Config(), options.DataDir(), options.DatastoreEndpoint()}, flags...)
	}
	return &cli.Command{
		Name:  "backup",
		Usage: "back up the whole cluster to a file, and rebuild it from one",
		Subcommands: []*cli.Command{
			{
				Name: "create", ArgsUsage: "[FILE]",
				Usage: "write a backup, and verify it",
				Description: "FILE is DATA-DIR/" + backupsDir + "/karve-TIME" + backupSuffix + " by default; - is standard output. A server may run. The backup has everything that\n" +
					"makes the cluster this cluster: objects, certificates, keys, the keys of encrypted\n" +
					"Secrets, SSH keys, manifests and the configuration file. Whoever can read it is an\n" +
					"administrator.\n" +
					"With --recipient or --passphrase-file it is sealed, in the format of age.",
				Flags: with(&cli.BoolFlag{Name: "overwrite", Usage: "replace the file if it exists"},
					&cli.StringSliceFlag{Name: "recipient", Usage: "`KEY` of age, the public one, to seal the backup for. Repeat it for several."},
					passphrase("`FILE` with a passphrase to seal the backup with; - is standard input")),
				Before: options.FindDataDir, Action: createBackup,
			},
			{
				Name: "verify", ArgsUsage: "FILE", Usage: "check that a backup is whole, and print what is in it",
				Flags: with(append(open, output.Flag())...), Before: options.ReadDataDir, Action: verifyBackup,
			},
			{
				Name: "restore", ArgsUsage: "FILE", Usage: "rebuild the cluster of a backup in an empty data directory",
				Description: "Nodes, kubeconfigs and tokens of the cluster remain valid. The server must not run, and its\n" +
					"data directory must not have a cluster. No file is replaced. If it is interrupted, the same\n" +
					"command finishes it. karve datastore restore and karve reset take an existing cluster\n" +
					"back instead.",
				Flags: with(open...), Action: restoreBackup,
				Before: func(c *cli.Context) error {
					if config := c.String("config"); config != "" && !Exists(config) {
						return nil // it may be in the backup
					}
					return options.ReadDataDir(c)
				},
			},
		},
	}
}

func createBackup(c *cli.Context) error {
	dir := Absolute(c.String("data-dir"))
	if !Exists(dir) {
		return servers.None(dir)
	}
	var name string
	switch c.Args().Len() {
	case 0:
		backups := filepath.Join(dir, backupsDir)
		if err := ownership.Act(dir, func() error { return atomicfile.MakeDir(backups) }); errors.Is(err, syscall.EROFS) {
			return directory.ReadOnly(dir)
		} else if err != nil {
			return err
		}
		name = filepath.Join(backups, "karve-"+time.Now().UTC().Format(directory.Stamp)+backupSuffix)
	case 1:
		name = c.Args().First()
	default:
		return fmt.Errorf("karve backup create takes one FILE, got %d arguments", c.Args().Len())
	}
	file, err := destinationOf(c, name)
	if err != nil {
		return err
	}
	recipients, err := recipientsOf(c)
	if err != nil {
		return err
	}
	show := output.Report(c)
	doing := func(what string) { show(func() string { return what }) }
	info, err := writeBackup(c, dir, file, recipients, doing)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	sealed := ""
	if len(recipients) > 0 {
		sealed = ", sealed"
	}
	if err := recordBackup(c, file, info); err != nil { // the backup itself is complete
		fmt.Fprintf(c.App.ErrWriter, "karve: %v (karve status will not show this backup)\n", err)
	}
	fmt.Fprintf(told(c, file), "wrote and verified %s: %d keys at revision %d%s\n", called(file), info.Keys, info.Revision, sealed)
	return nil
}

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

// writeBackup makes the backup in the data directory first, so that one that is to be sealed is on no other disk as it is (unless that
// directory cannot be written: see [scratch]), verifies it, and then places it.
func writeBackup(c *cli.Context, dir, file string, recipients []age.Recipient, doing func(string)) (info *snapshot.Info, err error) {
	build := func(temp *directory.TempDir) error {
		doing("writing")
		info, err = snapshot.MakeVerified(c.Context, temp, func(w io.Writer, scratch string) error {
			defer doing("verifying")
			return takeSnapshot(c, dir, scratch, w)
		})
		return err
	}
	err = place(c, file, true, build, func(w io.Writer, plain io.Reader) error {
		if len(recipients) == 0 {
			return plainly(w, plain)
		}
		sealing, err := age.Encrypt(w, recipients...)
		if err != nil {
			return err
		}
		return errors.Join(plainly(sealing, plain), sealing.Close())
	})
	return info, err
}

// checkBackupSpace returns an error unless the data directory has space for a backup.
func checkBackupSpace(c *cli.Context, dir string) error {
	path, err := engineFile(c)
	if err != nil {
		return nil // writing the backup reports it
	}
	return snapshots.CheckSpace(dir, sqlitefile.Size(path)+sqlitefile.Size(path+"-wal"))
}

// takeSnapshot writes a snapshot. It asks the server, if one runs: only the server has what it keeps in memory.
func takeSnapshot(c *cli.Context, dir, scratch string, w io.Writer) error {
	_, held, err := servers.Holder(dir)
	if err != nil {
		return err
	}
	if held {
		client := control.New(dir)
		defer client.Close()
		return client.Snapshot(c.Context, w)
	}
	path, err := engineFile(c)
	if err != nil {
		return err
	}
	from := snapshot.Source{DataDir: dir, StoreDir: filepath.Dir(path), Files: options.ConfiguredFiles(c), ManifestsDir: options.ConfiguredManifestsDir(c)}
	_, err = snapshot.Write(c.Context, from, scratch, w)
	return err
}

// backupInfo is what `karve backup verify` prints.
type backupInfo struct {
	File     string    `json:"file"`
	Bytes    int64     `json:"bytes"`
	Time     time.Time `json:"time,omitzero"`
	Revision int64     `json:"revision,omitempty"`
	Keys     int64     `json:"keys,omitempty"`
	Version  string    `json:"version,omitempty"`
	Sealed   bool      `json:"sealed"`
}

// withBackup opens the file that is the argument.
func withBackup(c *cli.Context, body func(file string, f *os.File, open func() (io.ReadCloser, error)) error) error {
	file, err := oneFile(c)
	if err != nil {
		return err
	}
	file = Absolute(file)
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return err
	} else if info.IsDir() {
		return fmt.Errorf("%s is a directory: name a file of karve backup create", file)
	}
	open, err := opened(c, f)
	if err != nil {
		return err
	}
	return body(file, f, open)
}

func verifyBackup(c *cli.Context) error {
	if err := output.Check(c); err != nil {
		return err
	}
	return withBackup(c, func(file string, f *os.File, open func() (io.ReadCloser, error)) error {
		b := backupInfo{File: file, Sealed: isSealed(whole(f))}
		if info, err := f.Stat(); err == nil {
			b.Bytes = info.Size()
		}
		err := snapshot.WithSource(file, open, func(s *snapshot.Snapshot) error {
			b.Time, b.Revision, b.Keys, b.Version = s.Time, s.Revision, s.Keys, s.Version
			_, err := s.Verify(c.Context, os.TempDir())
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
				return ownership.ExplainTemp(err)
			}
			return err
		})
		if err != nil {
			return err
		}
		return output.Show(c, b, func(w io.Writer) {
			fmt.Fprintf(w, "%s is whole: %d keys at revision %d, of %s, made by karve %s\n", b.File, b.Keys, b.Revision, b.Time.Local().Format(time.DateTime), output.Printable(b.Version))
		})
	})
}

func restoreBackup(c *cli.Context) error {
	return withBackup(c, func(file string, _ *os.File, open func() (io.ReadCloser, error)) error {
		return rebuildFrom(c, file, open)
	})
}

// rebuildFrom rebuilds a cluster in --data-dir, or in that of the backup's configuration file, if this machine has none. Files beside the configuration file are made there, and others of the
// user's in the data directory.
func rebuildFrom(c *cli.Context, file string, open func() (io.ReadCloser, error)) error {
	configured, err := configuredDataDir(file, open)
	if err != nil {
		return err
	}
	if configured != "" && !c.IsSet("data-dir") && !Exists(options.ConfigPath(c)) {
		if err := c.Set("data-dir", configured); err != nil {
			return err
		}
	}
	dir := Absolute(c.String("data-dir"))
	store, err := datastoreDir(c)
	if err != nil {
		return err
	}
	if err := atomicfile.MakeDir(dir); err != nil {
		return err
	}
	configs := filepath.Dir(options.ConfigPath(c))
	if configured != "" && configured != dir && !c.IsSet("config") { // with that file, a server would begin a new cluster elsewhere
		configs = ""
	}
	var placed, kept []string
	var manifests string
	var done *snapshot.Info
	err = ownership.Act(dir, func() (err error) {
		done, err = snapshots.Restore(c.Context, file, open, dir, Absolute(store), func(s *snapshot.Snapshot) (err error) {
			if place, n := s.ManifestsIn(dir); n > 0 {
				manifests = place
			}
			placed, kept, err = s.PlaceFiles(func(path string) string {
				if filepath.Dir(path) == configs {
					return path
				}
				return filepath.Join(dir, snapshot.Elsewhere, filepath.Base(path))
			})
			return err
		})
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "restored %d keys of revision %d and the cluster's keys to %s\n", done.Keys, done.Revision, dir)
	if manifests != "" {
		placed = append(placed, manifests)
	}
	for _, path := range placed {
		path = output.Printable(path)
		fmt.Fprintf(c.App.Writer, "placed %s\n", path)
		if strings.HasPrefix(path, filepath.Join(dir, snapshot.Elsewhere)) {
			fmt.Fprintf(c.App.ErrWriter, "karve: warning: move %s to where its option looks for it, before the first start\n", path)
		}
	}
	for _, path := range kept {
		fmt.Fprintf(c.App.ErrWriter, "karve: warning: %s exists with other contents and stays; the backup's is %s\n", path, path+snapshot.Beside)
	}
	return nil
}

// configuredDataDir is --data-dir in the configuration file of a backup; empty if it names none.
func configuredDataDir(file string, open func() (io.ReadCloser, error)) (dir string, err error) {
	err = snapshot.WithSource(file, open, func(s *snapshot.Snapshot) error {
		for _, text := range s.FileContents() {
			if named := options.DataDirIn(text); named != "" {
				dir = named
			}
		}
		return nil
	})
	return dir, err
}
