package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

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
	for _, name := range []string{datastore.EngineFile, kineimport.FileName} {
		if file := filepath.Join(b.dir, name); exists(file) {
			b.file = file
			return true
		}
	}
	return false
}

// backUp copies the data while the service is stopped, with a program that knows them.
func (i *Installer) backUp(ctx context.Context, b *backup, program, config string) error {
	if exists(b.dir) && !marker.Ours(b.dir) && os.Remove(b.dir) != nil {
		return fmt.Errorf("no upgrade without a backup: %s has other files than Karve's", b.dir)
	}
	if err := errors.Join(atomicfile.MakeDir(b.dir), marker.Write(b.dir)); err != nil {
		return fmt.Errorf("no upgrade without a backup: %w", err)
	}
	target := filepath.Join(b.dir, datastore.EngineFile)
	if !exists(filepath.Join(b.store, datastore.EngineFile)) {
		return i.copyOld(ctx, b)
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
	if exists(target) {
		if err := setup.Keep(target, kept); err != nil {
			return fmt.Errorf("no upgrade without a backup: %w", err)
		}
	}
	said, err := i.Service.Run(ctx, program, "datastore", "backup", "--config", config, "--overwrite", target)
	if err != nil {
		os.Remove(kept)
		return fmt.Errorf("no upgrade without a backup, which failed: %w", err)
	}
	if exists(kept) {
		if err := atomicfile.Rename(kept, previous); err != nil {
			return fmt.Errorf("no upgrade without a backup: %w", err)
		}
	}
	b.file = target
	i.Say("%s", lastLine(said))
	return nil
}

// copyOld copies a state.db, which the new version converts.
func (i *Installer) copyOld(ctx context.Context, b *backup) error {
	for _, suffix := range []string{"-wal", "-shm", ""} { // the file itself last: if it is there, the copy is complete
		from, to := filepath.Join(b.store, kineimport.FileName+suffix), filepath.Join(b.dir, kineimport.FileName+suffix)
		os.Remove(to)
		if exists(from) {
			if _, err := i.Service.Run(ctx, "cp", "-p", from, to); err != nil {
				return fmt.Errorf("no upgrade without a backup: %w", err)
			}
		}
	}
	b.file = filepath.Join(b.dir, kineimport.FileName)
	i.Say("copied %s to %s", filepath.Join(b.store, kineimport.FileName), b.file)
	return nil
}

// putBack undoes what the new version did to the data. A version that refused them has not changed them.
func (b *backup) putBack(ctx context.Context, i *Installer, config string) {
	database := filepath.Join(b.store, datastore.EngineFile)
	switch filepath.Base(b.file) {
	case datastore.EngineFile:
		before, err := os.ReadFile(filepath.Join(b.dir, statsFile))
		if now, _ := i.Service.Run(ctx, i.Program(), "datastore", "stats", "--config", config); err == nil && now == string(before) && now != "" {
			return
		}
		said, err := i.Service.Run(ctx, i.Program(), "datastore", "restore", "--config", config, b.file)
		if err != nil {
			i.Warn("the data could not be restored: %v. The backup is %s", err, b.file)
			return
		}
		i.Warn("%s", lastLine(said))
	case kineimport.FileName:
		if !exists(database) {
			return // not converted
		}
		aside := filepath.Join(b.store, "given-up."+time.Now().Format("20060102T150405"))
		err := os.Mkdir(aside, 0o700)
		for _, pattern := range []string{datastore.EngineFile, kineimport.FileName} {
			files, _ := filepath.Glob(filepath.Join(b.store, pattern+"*"))
			for _, file := range files {
				err = errors.Join(err, os.Rename(file, filepath.Join(aside, filepath.Base(file))))
			}
		}
		copies, _ := filepath.Glob(b.file + "*")
		if err == nil {
			_, err = i.Service.Run(ctx, "cp", append(append([]string{"-p"}, copies...), b.store)...)
		}
		if err != nil {
			i.Warn("the data could not be restored to %s: %v. The backup is %s", b.store, err, b.file)
			return
		}
		i.Warn("the data as the new version left them are in %s", aside)
	default:
		return
	}
	i.Warn("the data of before the upgrade are restored")
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
