package install

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/internal/setup"
	"github.com/karve-k8s/karve/server/marker"
	"github.com/karve-k8s/karve/server/membership"
)

const (
	serviceUser = "karve"
	userComment = "Karve service, made by karve install"
)

// owner is the user as whom the service runs.
type owner struct {
	name string
	ownership.Owner
}

var root = owner{name: "root"}

// serviceOwner makes the service's user. If it cannot, the service runs as root.
func (i *Installer) serviceOwner(ctx context.Context, c *config) owner {
	if i.User || i.Service.Init == setup.None {
		return root
	}
	o, ok := lookUp()
	if !ok {
		if i.Lookup("useradd") {
			_, _ = i.Service.Run(ctx, "useradd", "--system", "--user-group", "--no-create-home", "--home-dir", c.dataDir, "--shell", "/bin/false", "--comment", userComment, serviceUser)
		} else if _, err := i.Service.Run(ctx, "addgroup", "-S", serviceUser); err == nil {
			_, _ = i.Service.Run(ctx, "adduser", "-S", "-D", "-H", "-h", c.dataDir, "-s", "/bin/false", "-g", userComment, "-G", serviceUser, serviceUser)
		}
		if o, ok = lookUp(); !ok {
			i.Warn("the user %s could not be created, so the service runs as root", serviceUser)
			return root
		}
	}
	if i.Service.Init == setup.OpenRC && c.lowPort() {
		if _, err := i.Service.Run(ctx, "env", "RC_SVCNAME=karve", "supervise-daemon", "karve", "--capabilities", bindLow, "--version"); err != nil {
			i.Warn("this OpenRC cannot grant capabilities, so the service runs as root to use a port below 1024")
			return root
		}
	}
	return o
}

func lookUp() (owner, bool) {
	u, err := user.Lookup(serviceUser)
	if err != nil {
		return owner{}, false
	}
	uid, errUID := strconv.Atoi(u.Uid)
	gid, errGID := strconv.Atoi(u.Gid)
	return owner{serviceUser, ownership.Owner{UID: uid, GID: gid}}, errUID == nil && errGID == nil
}

// prepare makes directories that do not exist, and gives the service those that nobody has used, and its secrets:
// karve check then reads files as the service will. undo removes what it made.
func (i *Installer) prepare(c *config, o owner) (undo func(), err error) {
	var made []string
	undo = func() {
		for _, dir := range made {
			os.Remove(dir) // it is empty, unless a server has begun to use it
		}
	}
	for _, dir := range c.directories() {
		if _, err := os.Stat(dir); os.IsNotExist(err) {
			if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
				return undo, err
			}
			if err := os.Mkdir(dir, 0o700); err != nil {
				return undo, err
			}
			made = append(made, dir)
		} else if marker.Ours(dir) {
			continue
		}
		if err := i.own(dir, o); err != nil {
			return undo, err
		}
	}
	if o == root {
		return undo, nil
	}
	for _, option := range []string{membership.Option, "datastore-keyfile", "ssh-keyfile"} {
		// Those elsewhere may serve another program, too: karve check says what is wrong with them.
		if file := c.option(option); filepath.Dir(file) == filepath.Dir(i.Config) {
			if err := ownership.Give(file, c.dataDir); err != nil && !os.IsNotExist(err) {
				return undo, err
			}
		}
	}
	return undo, nil
}

// own makes the service the owner of a directory. It follows a link to the directory, but none in it: that may
// be another user's, and this is root.
func (i *Installer) own(dir string, o owner) error {
	if i.User || i.Service.Init == setup.None {
		return nil
	}
	r, err := os.OpenRoot(real(dir))
	if err == nil {
		defer r.Close()
		err = fs.WalkDir(r.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return r.Lchown(path, o.UID, o.GID)
		})
	}
	if err != nil {
		return fmt.Errorf("the owner of %s could not be changed to %s: %w", dir, o.name, err)
	}
	return nil
}
