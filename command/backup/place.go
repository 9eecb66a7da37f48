package backup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/destination"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/server/snapshots"
	"github.com/karve-k8s/karve/snapshot"
)

// destinationOf returns the file that an argument means, or [destination.Stdout].
func destinationOf(c *cli.Context, name string) (string, error) {
	if name == destination.Stdout {
		if f, ok := c.App.Writer.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			return "", errors.New("-: standard output is a terminal: redirect it, or name a file")
		}
		return name, nil
	}
	dir := options.Absolute(c.String("data-dir"))
	file, err := destination.Find(name, destination.Rules{
		Overwrite: c.Bool("overwrite"), Stream: true, Outside: []string{dir, options.OwnedDir(c)},
		But: []string{filepath.Join(dir, snapshot.FileName), filepath.Join(dir, snapshots.BackupsDir)},
	})
	if errors.Is(err, fs.ErrExist) {
		return "", existsAlready(name)
	}
	return file, err
}

func existsAlready(name string) error {
	return fmt.Errorf("%s exists already (--overwrite replaces it)", name)
}

// place makes a file for the user. build makes it in a temporary directory in the data directory or, where that is read-only or too full,
// in TMPDIR, as the owner of the data directory. Then copyTo copies it as the owner of the directory of the destination. So root follows
// no name that another user can exchange, and a backup that is to be sealed is on no other disk as it is.
func place(c *cli.Context, file string, build func(*directory.TempDir) error, copyTo func(io.Writer, io.Reader) error) (err error) {
	owned := options.OwnedDir(c)
	var temp *directory.TempDir
	var made *os.File
	defer func() {
		if made != nil {
			made.Close()
		}
		if temp != nil {
			err = errors.Join(err, ownership.Act(owned, temp.Remove))
		}
	}()
	err = ownership.Act(owned, func() (err error) {
		size := int64(0) // of a database in memory, as far as is known
		if path, err := engineFile(c); err == nil {
			size = snapshot.SizeOf(path)
		}
		if temp, err = snapshot.Scratch(owned, snapshot.Space(size)); err == nil {
			err = build(temp)
		}
		if err == nil {
			made, err = os.Open(temp.File())
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case file == destination.Stdout:
		return copyTo(c.App.Writer, made)
	}
	err = destination.Act(file, func() error {
		return snapshot.Place(file, c.Bool("overwrite"), func(w io.Writer, _ string) error { return copyTo(w, made) })
	})
	if errors.Is(err, snapshot.ErrExists) { // made meanwhile
		return existsAlready(file)
	}
	return err
}
