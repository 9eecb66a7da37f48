package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/internal/setup"
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

// serviceOwner makes the service's user.
func (i *Installer) serviceOwner(ctx context.Context, c *config) (owner, error) {
	if i.User || i.Service.Init == setup.None {
		return root, nil
	}
	o, there, err := lookUp()
	if err == nil && !there {
		if i.Lookup("useradd") {
			_, err = i.Service.Run(ctx, "useradd", "--system", "--user-group", "--no-create-home", "--home-dir", c.dataDir, "--shell", "/bin/false", "--comment", userComment, serviceUser)
		} else if _, err = i.Service.Run(ctx, "addgroup", "-S", serviceUser); err == nil {
			_, err = i.Service.Run(ctx, "adduser", "-S", "-D", "-H", "-h", c.dataDir, "-s", "/bin/false", "-g", userComment, "-G", serviceUser, serviceUser)
		}
		failed := err
		if o, there, err = lookUp(); err == nil && !there {
			err = fmt.Errorf("the user %s, as whom the service runs, could not be created: create it, and run this again (%v)", serviceUser, failed)
		}
	}
	if err == nil && i.Service.Init == setup.OpenRC && c.lowPort() {
		if _, err := i.Service.Run(ctx, "env", "RC_SVCNAME=karve", "supervise-daemon", "karve", "--capabilities", bindLow, "--version"); err != nil {
			return o, errors.New("this OpenRC cannot grant capabilities, which a port below 1024 needs: choose another port, or upgrade OpenRC")
		}
	}
	return o, err
}

// lookUp finds the service's user, which needs a group of its own: that reads the service's options.
func lookUp() (o owner, there bool, err error) {
	u, noUser := user.Lookup(serviceUser)
	g, noGroup := user.LookupGroup(serviceUser)
	switch {
	case noUser != nil && noGroup != nil:
		return owner{}, false, nil
	case noUser != nil:
		return owner{}, false, fmt.Errorf("this machine has a group %[1]s without a user %[1]s, which the service needs: its members could read the service's options. Remove the group (groupdel %[1]s); or, if they may, add the user (useradd --system --gid %[1]s --no-create-home --shell /bin/false %[1]s)", serviceUser)
	case noGroup != nil || u.Gid != g.Gid:
		return owner{}, false, fmt.Errorf("the service runs as the user %[1]s, which needs the group %[1]s as its own: groupadd --system --force %[1]s && usermod --gid %[1]s %[1]s", serviceUser)
	}
	uid, errUID := strconv.Atoi(u.Uid)
	gid, errGID := strconv.Atoi(u.Gid)
	return owner{serviceUser, ownership.Owner{UID: uid, GID: gid}}, true, errors.Join(errUID, errGID)
}

// prepare makes directories that do not exist, and gives the service those that are empty, and its secrets:
// karve check then reads files as the service will. undo removes what it made.
func (i *Installer) prepare(c *config, o owner) (undo func(), err error) {
	var made []string
	undo = func() {
		slices.Sort(made)
		for _, dir := range slices.Backward(made) {
			os.Remove(dir) // it is empty, unless a server has begun to use it
		}
	}
	for _, dir := range c.directories() {
		if _, err := os.Stat(dir); os.IsNotExist(err) {
			for at := dir; !setup.Exists(at); at = filepath.Dir(at) {
				made = append(made, at)
			}
			if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
				return undo, err
			}
			if err := os.Mkdir(dir, 0o700); err != nil {
				return undo, err
			}
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
	for _, dir := range append(c.directories(), filepath.Dir(i.Config)) {
		err := ownership.ActOutside(c.dataDir, func() error { _, err := os.Stat(dir + "/."); return err })
		if err != nil && !os.IsNotExist(err) {
			return undo, fmt.Errorf("the user %s cannot enter %s, which the service needs: chmod o+x it, or the directory above that is closed (%w)", o.name, dir, err)
		}
	}
	return undo, nil
}

// own makes the service the owner of an empty directory. One with files is the service's already, or is refused: whose they are, only
// the administrator knows.
func (i *Installer) own(dir string, o owner) error {
	if i.User || i.Service.Init == setup.None {
		return nil
	}
	r, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer r.Close()
	info, err := r.Stat(".")
	if err != nil {
		return err
	}
	has, known := ownership.Of(info)
	if !known || has.UID == o.UID {
		return nil
	}
	if !isEmpty(dir) {
		return fmt.Errorf("%s belongs to %s, and the service runs as %s: give it the files by: find %s -xdev -user %d -exec chown -h %d:%d {} +", dir, has, o.name, real(dir), has.UID, o.UID, o.GID)
	}
	return r.Chown(".", o.UID, o.GID)
}
