package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/kineimport"
	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/setup"
	"github.com/karve-k8s/karve/server/marker"
)

// statsFile has what `karve datastore stats` printed before an upgrade, beside the backup.
const statsFile = "stats"

// backup is the copy of the data from before an upgrade. Its directory stays until the next upgrade.
type backup struct {
	dir, store string
	file       string // the copy; empty if there is none
}

func backupOf(c *config) backup { return backup{dir: c.dataDir + ".before-upgrade", store: c.storeDir} }

// find looks for the backup that an upgrade made that was cut short.
func (b *backup) find() bool {
	file := filepath.Join(b.dir, datastore.EngineFile)
	if !setup.Exists(file) {
		return false
	}
	b.file = file
	return true
}

// backUp copies the data while the service is stopped, with a program that knows them.
func (i *Installer) backUp(ctx context.Context, b *backup, program, config string) error {
	if setup.Exists(b.dir) && !marker.Ours(b.dir) && os.Remove(b.dir) != nil {
		return fmt.Errorf("no upgrade without a backup: %s has other files than Karve's", b.dir)
	}
	if err := errors.Join(atomicfile.MakeDir(b.dir), marker.Write(b.dir)); err != nil {
		return fmt.Errorf("no upgrade without a backup: %w", err)
	}
	target := filepath.Join(b.dir, datastore.EngineFile)
	if !setup.Exists(filepath.Join(b.store, datastore.EngineFile)) {
		return kineimport.Waiting(b.store)
	}
	stats, _ := i.Service.Run(ctx, program, "datastore", "stats", "--config", config)
	if err := atomicfile.Write(filepath.Join(b.dir, statsFile), []byte(stats), 0o600); err != nil {
		return fmt.Errorf("no upgrade without a backup: %w", err)
	}
	// A return to the old version is a change of version, too, and must not cost the backup that it may need.
	// That one, and the one before it, stay until the new one is complete.
	kept, previous := target+".kept", target+setup.PreviousSuffix
	if info, err := os.Lstat(previous); err == nil && info.IsDir() {
		return fmt.Errorf("no upgrade without a backup: %s is a directory: move it away", previous)
	}
	os.Remove(kept)
	if setup.Exists(target) {
		if err := setup.Keep(target, kept); err != nil {
			return fmt.Errorf("no upgrade without a backup: %w", err)
		}
	}
	said, err := i.Service.Run(ctx, program, "datastore", "backup", "--config", config, "--overwrite", target)
	if err != nil {
		os.Remove(kept)
		return fmt.Errorf("no upgrade without a backup, which failed: %w", err)
	}
	if setup.Exists(kept) {
		if err := atomicfile.Rename(kept, previous); err != nil {
			return fmt.Errorf("no upgrade without a backup: %w", err)
		}
	}
	b.file = target
	i.Say("%s", lastLine(said))
	return nil
}

// putBack undoes what the new version did to the data. A version that refused them has not changed them.
func (b *backup) putBack(ctx context.Context, i *Installer, config string) {
	if b.file == "" {
		return
	}
	before, err := os.ReadFile(filepath.Join(b.dir, statsFile))
	if now, _ := i.Service.Run(ctx, i.Program(), "datastore", "stats", "--config", config); err == nil && now == string(before) && now != "" {
		return
	}
	said, err := i.Service.Run(ctx, i.Program(), "datastore", "restore", "--config", config, b.file)
	if err != nil {
		i.Warn("the data could not be restored: %v. The backup is %s", err, b.file)
		return
	}
	i.Warn("the data of before the upgrade are restored, without what the new version has acknowledged since; that is only in the file that was kept")
	i.Warn("%s", lastLine(said))
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
