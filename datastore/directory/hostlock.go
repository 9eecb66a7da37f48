package directory

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A claim says which machine uses a data directory on a network's file system. The kernel's
// lock is enough where it reaches the other machines; with some servers and mount options
// (nolock, local_lock) it does not. The file is made with O_EXCL, which is atomic on NFS as
// well, so of two machines that start at once one is refused.
type claim struct {
	Host    string `json:"host"`    // its name, for the message
	Machine string `json:"machine"` // a hash of its machine-id; empty if it has none
	Boot    string `json:"boot"`    // of its kernel; containers have that of their host
	PID     int    `json:"pid"`
}

// claimFile is its name in the data directory.
const claimFile = "lock.host"

// thisHost is the claim of this process.
func thisHost() claim {
	c := claim{PID: os.Getpid()}
	c.Host, _ = os.Hostname()
	if id, err := os.ReadFile("/etc/machine-id"); err == nil && len(strings.TrimSpace(string(id))) > 0 {
		// machine-id(5): it is not to leave the machine as it is.
		c.Machine = fmt.Sprintf("%x", sha256.Sum256(append([]byte("karve data directory "), id...)))
	}
	if id, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		c.Boot = strings.TrimSpace(string(id))
	}
	return c
}

// sameHost tells whether two claims are certainly of one machine.
func (c claim) sameHost(other claim) bool {
	return c.Machine != "" && c.Machine == other.Machine || c.Boot != "" && c.Boot == other.Boot
}

// claimDir makes a directory that of a machine, or is [ErrLocked] if it is another's. The
// caller has the kernel's lock: what this machine has left there is of a process that is gone.
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
			return nil // a start on a full disk is how room is made; the kernel's lock is left
		}
		return err
	}
	return fmt.Errorf("%w: %s: another machine starts at the same time", ErrLocked, dir)
}

// claimedElsewhere is [ErrLocked] if the claim at path is of another machine.
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
	who := "another machine, or by a start that did not finish"
	if have.Host != "" {
		who = fmt.Sprintf("process %d of the machine %s", have.PID, have.Host)
	}
	return fmt.Errorf("%w: %s is used by %s, or was when that lost power; two machines would destroy the datastore. "+
		"If no server runs there, remove %s", ErrLocked, filepath.Dir(path), who, path)
}

// ClaimedElsewhere is [ErrLocked] if another machine uses a data directory on a network's
// file system, by what it has left there.
func ClaimedElsewhere(dir string) error {
	if !networked(dir) {
		return nil
	}
	return claimedElsewhere(filepath.Join(dir, claimFile), thisHost())
}

// unclaim lets another machine use the directory.
func unclaim(dir string) error {
	if err := os.Remove(filepath.Join(dir, claimFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release data directory: %w", err)
	}
	return nil
}
