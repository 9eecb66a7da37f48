package backup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/admin"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/kineimport"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/snapshot"
)

// Datastore is `karve datastore`. Its commands work while a server runs and without one, except
// restore, salvage, import and migrate.
func Datastore() *cli.Command {
	// A server that runs is found for those that can ask it.
	running, stopped := options.FindDataDir, options.ReadDataDir
	sub := func(name, args, usage string, before cli.BeforeFunc, action cli.ActionFunc, more ...cli.Flag) *cli.Command {
		return &cli.Command{
			Name: name, ArgsUsage: args, Usage: usage, Before: before, Action: action,
			Flags: append([]cli.Flag{options.Config(), options.DataDir(), options.DatastoreEndpoint()}, more...),
		}
	}
	return &cli.Command{
		Name:  "datastore",
		Usage: "inspect, restore and migrate the datastore",
		Subcommands: []*cli.Command{
			sub("stats", "", "print figures about the datastore", running, options.AsOwner(datastoreStats), output.Flag()),
			sub("verify", "", "check every page and row of the database", running, options.AsOwner(datastoreVerify), output.Flag()),
			databaseBackup(),
			sub("restore", "FILE", "replace the database by that of a backup; the server must be stopped", stopped, datastoreRestore,
				options.ClusterTokenFile(), options.NewAuthorities()),
			sub("salvage", "", "save what can be read of a damaged database; the server must be stopped", stopped, options.AsOwner(datastoreSalvage), output.Flag()),
			sub("migrate", "", "copy the cluster to another datastore; all servers must be stopped", stopped, datastoreMigrate, append(options.Migration(), output.Flag())...),
			sub("import", "FILE", "import the state.db of a k3s; the server must be stopped", stopped, datastoreImport),
		},
	}
}

// engineFile is the path of the database, which must exist.
func engineFile(c *cli.Context) (string, error) {
	dir, err := options.DatastoreDir(c)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, datastore.EngineFile)
	_, err = os.Stat(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	if err := kineimport.Waiting(dir); err != nil {
		return "", err
	}
	return "", fmt.Errorf("%s does not exist: no server has been started with this datastore, or it has another one: name its --data-dir and --datastore-endpoint", path)
}

func datastoreStats(c *cli.Context) error {
	path, err := engineFile(c)
	if err != nil {
		return err
	}
	s, err := servers.Beside(c.Context, c.String("data-dir"), path, control.StatsPath, func() (*backup.Stats, error) { return backup.ReadStats(c.Context, sqlitefile.ClosedFile(path)) })
	if err != nil {
		return err
	}
	return output.Show(c, s, func(w io.Writer) {
		stop := "in use, or not closed cleanly"
		if s.Clean {
			stop = "closed cleanly"
		}
		fmt.Fprintf(w, "file\t%s (%s)\n", s.Path, stop)
		fmt.Fprintf(w, "schema\t%d\n", s.SchemaVersion)
		fmt.Fprintf(w, "revision\t%d\n", s.Revision)
		fmt.Fprintf(w, "compacted to\t%d\n", s.CompactRevision)
		fmt.Fprintf(w, "keys\t%d\n", s.Keys)
		fmt.Fprintf(w, "bytes in keys\t%d\n", s.LiveBytes)
		fmt.Fprintf(w, "leases\t%d\n", s.Leases)
		fmt.Fprintf(w, "rows\t%d\n", s.Rows)
		fmt.Fprintf(w, "bytes of the file\t%d (%d free)\n", s.FileBytes, s.FreeBytes)
		fmt.Fprintf(w, "bytes of the WAL\t%d\n", s.WALBytes)
	})
}

func datastoreVerify(c *cli.Context) error {
	path, err := engineFile(c)
	if err != nil {
		return err
	}
	progress := output.Meter(c)
	v, err := servers.Beside(c.Context, c.String("data-dir"), path, control.VerifyPath, func() (*backup.Verification, error) {
		return backup.Verify(c.Context, sqlitefile.ClosedFile(path), progress)
	})
	if err != nil {
		return err
	}
	if v.OK || c.String("output") == "json" {
		err = output.Show(c, v, func(w io.Writer) {
			fmt.Fprintf(w, "%s is sound: %d rows, %d keys, revision %d\n", v.Path, v.Rows, v.Keys, v.Revision)
		})
	}
	problems := []error{err}
	for _, p := range v.Problems {
		problems = append(problems, fmt.Errorf("%s: %s", v.Path, p))
	}
	if !v.OK {
		problems = append(problems, fmt.Errorf("%s is damaged: stop the server, then restore a backup (karve datastore restore FILE) or save what can be read (karve datastore salvage)", v.Path))
	}
	return errors.Join(problems...)
}

// stopped runs body with the lock of the database's directory. It fails if a server holds it.
func stopped(c *cli.Context, body func(lock *directory.Lock, progress sqlitefile.Progress) error) (err error) {
	dir, err := options.DatastoreDir(c)
	if err != nil {
		return err
	}
	lock, err := directory.Acquire(dir)
	if errors.Is(err, directory.ErrLocked) {
		return fmt.Errorf("%w: stop the server first", err)
	} else if err != nil {
		return err
	}
	defer func() {
		if e := lock.Close(); err == nil {
			err = e
		}
	}()
	return body(lock, output.Meter(c))
}

func datastoreRestore(c *cli.Context) error {
	file := c.Args().First()
	f, err := os.Open(file) // before a data directory is created for nothing
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("restore %s: %w", file, fs.ErrNotExist)
	} else if err != nil {
		return err
	}
	defer f.Close()
	whole, err := isBackup(f)
	if err != nil {
		return fmt.Errorf("restore %s: %w", file, err)
	}
	owned := options.OwnedDir(c)
	if whole {
		dir := options.Absolute(c.String("data-dir"))
		if _, missing := engineFile(c); missing != nil && !options.Exists(filepath.Join(dir, "certs")) {
			return fmt.Errorf("restore %s: there is no cluster in %s: karve backup restore %[1]s rebuilds it there, with its keys", file, dir)
		}
		options.RemoveStages(owned)
		return ownership.Act(owned, func() error {
			return stopped(c, func(lock *directory.Lock, progress sqlitefile.Progress) error { return restoreOf(c, lock, f, progress) })
		})
	}
	copyFile := func(to string) error {
		_, err := backup.Write(c.Context, sqlitefile.ClosedFile(file), to)
		return err
	}
	return withReadable(owned, file, copyFile, func(file string) error {
		return stopped(c, func(lock *directory.Lock, progress sqlitefile.Progress) error {
			return restoreDatabase(c, lock, file, progress)
		})
	})
}

// restoreOf restores the database of a backup.
func restoreOf(c *cli.Context, lock *directory.Lock, f *os.File, progress sqlitefile.Progress) error {
	temp, err := directory.NewTempDir(lock.Dir())
	if err != nil {
		return err
	}
	defer temp.Remove()
	if err := snapshot.WithOpen(f, func(s *snapshot.Snapshot) error { return s.CopyDatabase(temp.File()) }); err != nil {
		return fmt.Errorf("restore %w", err)
	}
	return restoreDatabase(c, lock, temp.File(), progress)
}

// restoreDatabase replaces the database by one that this process can read.
func restoreDatabase(c *cli.Context, lock *directory.Lock, file string, progress sqlitefile.Progress) error {
	return withKeys(c, lock, file, func() error {
		r, err := admin.Restore(c.Context, lock, file, progress)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.App.Writer, "restored %d keys to %s, now at revision %d\n", r.Keys, r.To, r.Revision)
		for _, path := range r.Removed {
			fmt.Fprintf(c.App.Writer, "removed %s, which an earlier restore had kept\n", path)
		}
		if r.Kept != "" {
			fmt.Fprintf(c.App.Writer, "the earlier database is kept as %s\n", r.Kept)
		}
		return nil
	})
}

// isBackup reports whether a file is a backup of a cluster. The error is for one that is sealed.
func isBackup(f *os.File) (bool, error) {
	if isSealed(whole(f)) {
		return false, errors.New("this backup is sealed: karve backup restore opens it, with --passphrase-file or --identity")
	}
	err := snapshot.WithOpen(f, func(*snapshot.Snapshot) error { return nil })
	return !errors.Is(err, snapshot.ErrNone), nil
}

func datastoreSalvage(c *cli.Context) error {
	if _, err := engineFile(c); err != nil {
		return err
	}
	return stopped(c, func(lock *directory.Lock, progress sqlitefile.Progress) error {
		s, err := admin.Salvage(c.Context, lock, progress)
		if err != nil {
			return err
		}
		return output.Show(c, s, func(w io.Writer) {
			for _, problem := range s.Problems {
				fmt.Fprintln(w, output.Printable(problem))
			}
			fmt.Fprintf(w, "saved %d keys to %s, now at revision %d\n", s.Keys, s.Path, s.Revision)
			fmt.Fprintf(w, "the damaged database is kept as %s\n", s.Kept)
		})
	})
}

func datastoreImport(c *cli.Context) error {
	file := c.Args().First()
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("import %s: %w", file, fs.ErrNotExist)
	} else if err == nil {
		whole, sealed := isBackup(f)
		f.Close()
		if whole || sealed != nil {
			return fmt.Errorf("import %s: this is a backup of a cluster, which karve datastore restore and karve backup restore take", file)
		}
	}
	copyFile := func(to string) error { return kineimport.CopyTable(c.Context, file, to) }
	return withReadable(options.OwnedDir(c), file, copyFile, func(from string) error {
		return stopped(c, func(lock *directory.Lock, progress sqlitefile.Progress) error {
			i, err := kineimport.Import(c.Context, lock, from, progress)
			if err != nil {
				return err
			}
			fmt.Fprintf(c.App.Writer, "imported %d keys at revision %d from %s to %s\n", i.Keys, i.Revision, file, i.To)
			return unusable(keysOf(c, i.To))
		})
	})
}
