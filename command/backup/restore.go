package backup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/server/snapshots"
	"github.com/karve-k8s/karve/snapshot"
)

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
func withBackup(c *cli.Context, body func(c *cli.Context, f *os.File, open func() (io.ReadCloser, error)) error) error {
	file := options.Absolute(c.Args().First())
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
	return body(c, f, open)
}

func verifyBackup(c *cli.Context, f *os.File, open func() (io.ReadCloser, error)) error {
	b := backupInfo{File: f.Name(), Sealed: isSealed(whole(f))}
	if info, err := f.Stat(); err == nil {
		b.Bytes = info.Size()
	}
	err := snapshot.WithSource(b.File, open, func(s *snapshot.Snapshot) error {
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
}

// rebuildFrom rebuilds a cluster in --data-dir, or in that of the backup's configuration file, if this machine has none. Files beside the configuration file are made there, and others of the
// user's in the data directory.
func rebuildFrom(c *cli.Context, f *os.File, open func() (io.ReadCloser, error)) error {
	configured, err := configuredDataDir(f.Name(), open)
	if err != nil {
		return err
	}
	if configured != "" && !c.IsSet("data-dir") && !options.Exists(options.ConfigPath(c)) {
		if err := c.Set("data-dir", configured); err != nil {
			return err
		}
	}
	dir := options.Absolute(c.String("data-dir"))
	store, err := options.DatastoreDir(c)
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
		done, err = snapshots.Restore(c.Context, f.Name(), open, dir, options.Absolute(store), func(s *snapshot.Snapshot) (err error) {
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
