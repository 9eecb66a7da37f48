package directory

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A claim is a file that says which machine uses a directory on a network file system. The
// kernel's lock is enough where it reaches the other machines. With some servers and mount
// options (nolock, local_lock) it does not. The file is created with O_EXCL, which is atomic
// on NFS too, so one of two machines that start at the same time is refused.
type claim struct {
	Host string `json:"host"` // name of the machine, for the message
	Boot string `json:"boot"` // boot id of its kernel; containers have that of their host
	PID  int    `json:"pid"`
}

// claimFile is the name of the claim in the directory.
const claimFile = "lock.host"

// thisHost returns the claim of this process.
func thisHost() claim {
	c := claim{PID: os.Getpid()}
	c.Host, _ = os.Hostname()
	if id, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		c.Boot = strings.TrimSpace(string(id))
	}
	return c
}

// sameHost reports whether two claims are of the same kernel, whose lock counts. Names say nothing: a container has one of
// its own, and a machine that was cloned has the other one's.
func (c claim) sameHost(other claim) bool { return c.Boot != "" && c.Boot == other.Boot }

// claimDir claims a directory for a machine. The error is [ErrLocked] if another machine has
// claimed it. The caller holds the kernel's lock, so a claim of this machine is left from a
// process that is gone.
func claimDir(dir string, host claim) error {
	path := filepath.Join(dir, claimFile)
	for range 2 {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			if err := claimedElsewhere(path, host); err != nil {
				return err
			}
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		text, err := json.Marshal(host)
		if err == nil {
			_, err = f.Write(append(text, '\n'))
		}
		if err == nil {
			err = f.Sync()
		}
		if err = errors.Join(err, f.Close()); err == nil {
			return nil
		}
		// An unfinished claim would keep this machine out as well.
		if err := os.Remove(path); err != nil {
			return err
		}
		if IsFull(err) {
			return nil // a start must work on a full disk; the kernel's lock still holds
		}
		return err
	}
	return fmt.Errorf("%w: %s: another machine is starting at the same time", ErrLocked, dir)
}

// claimedElsewhere returns [ErrLocked] if the claim at path is another machine's.
func claimedElsewhere(path string, host claim) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	var have claim
	if err := json.Unmarshal(text, &have); err == nil && have.sameHost(host) {
		return nil
	}
	owner := "another machine, or by a start that did not finish"
	if have.Host != "" {
		owner = fmt.Sprintf("process %d of the machine %s", have.PID, have.Host)
	}
	return fmt.Errorf("%w: %s is used by %s, or was when that machine lost power; two machines would destroy the datastore. "+
		"If no server runs there, remove %s", ErrLocked, filepath.Dir(path), owner, path)
}

// ClaimedElsewhere returns [ErrLocked] if another machine has claimed a directory on a network
// file system.
func ClaimedElsewhere(dir string) error {
	if !networked(dir) {
		return nil
	}
	return claimedElsewhere(filepath.Join(dir, claimFile), thisHost())
}

// unclaim removes the claim, so that another machine can use the directory.
func unclaim(dir string) error {
	if err := os.Remove(filepath.Join(dir, claimFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release data directory: %w", err)
	}
	return nil
}
