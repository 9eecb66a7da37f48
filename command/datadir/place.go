package datadir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/destination"
	"github.com/karve-k8s/karve/internal/ownership"
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
	dir := Absolute(c.String("data-dir"))
	file, err := destination.Find(name, destination.Rules{
		Overwrite: c.Bool("overwrite"), Stream: true, Outside: []string{dir, ownedDir(c)},
		But: []string{filepath.Join(dir, snapshot.FileName), filepath.Join(dir, backupsDir)},
	})
	if errors.Is(err, fs.ErrExist) {
		return "", existsAlready(name)
	}
	return file, err
}

func existsAlready(name string) error {
	return fmt.Errorf("%s exists already (--overwrite replaces it)", name)
}

// place makes a file for the user. build makes it as the file of a temporary directory, as the owner of the data directory. If that
// owner also owns the directory of the destination, the file is made there, unless aside keeps it away. Otherwise copyTo copies it
// there as the owner of that directory. So root follows no name that another user can exchange.
func place(c *cli.Context, file string, aside bool, build func(*directory.TempDir) error, copyTo func(io.Writer, io.Reader) error) (err error) {
	owned := ownedDir(c)
	if !aside && file != destination.Stdout && destination.SameUser(file, owned) && !directory.Shared(filepath.Dir(file)) {
		err = ownership.Act(owned, func() error { return directory.Place(file, c.Bool("overwrite"), build) })
	} else {
		err = placeCopy(c, owned, file, build, copyTo)
	}
	if errors.Is(err, fs.ErrExist) || errors.Is(err, snapshot.ErrExists) { // made meanwhile
		return existsAlready(file)
	}
	return err
}

// placeCopy is place for a file that is made in the directory owned, or in TMPDIR, as the owner of that directory.
func placeCopy(c *cli.Context, owned, file string, build func(*directory.TempDir) error, copyTo func(io.Writer, io.Reader) error) (err error) {
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
		if temp, err = scratch(c, owned); err == nil {
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
	return destination.Act(file, func() error {
		return snapshot.Place(file, c.Bool("overwrite"), func(w io.Writer, _ string) error { return copyTo(w, made) })
	})
}

// scratch makes a temporary directory in owned or, where that is read-only or too full, in TMPDIR.
func scratch(c *cli.Context, owned string) (*directory.TempDir, error) {
	in := func(above string) (*directory.TempDir, error) {
		if err := checkBackupSpace(c, above); err != nil {
			return nil, err
		}
		return directory.NewTempDir(above)
	}
	temp, err := in(owned)
	if err != nil {
		var also error
		if temp, also = in(os.TempDir()); also != nil {
			return nil, ownership.ExplainTemp(fmt.Errorf("%w; %w", err, also))
		}
	}
	return temp, nil
}

// plainly copies a file as it is. It shares blocks where the file system can.
func plainly(w io.Writer, r io.Reader) error {
	_, err := io.Copy(w, r)
	return err
}

// called is how a command names what it has written.
func called(file string) string {
	if file == destination.Stdout {
		return "standard output"
	}
	return file
}

// told returns where a command says what it has done: not to standard output, if that has the file.
func told(c *cli.Context, file string) io.Writer {
	if file == destination.Stdout {
		return c.App.ErrWriter
	}
	return c.App.Writer
}
