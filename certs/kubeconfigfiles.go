package certs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/karve-k8s/karve/internal/atomicfile"
)

// KubeconfigFiles are the places where a server keeps the administrator's kubeconfig: a
// file of its own, and a copy where the user wants one. Beside the first, the server notes
// where the copy is, so that [RenewKubeconfigs] finds it without the server's options.
type KubeconfigFiles struct {
	// Path is the server's own file. Required.
	Path string
	// Copy is the user's. If it is empty, there is none.
	Copy string
	// CopyMode is the mode of the copy; 0 is 0600.
	CopyMode os.FileMode
}

// copyNote is the content of the note.
type copyNote struct {
	Path string `json:"path"`
	Mode string `json:"mode"` // octal
}

// notePath is the file of the note for a server's own kubeconfig.
func notePath(path string) string { return path + ".copy" }

// Write writes k to the copy, and then to the server's own file, which shows that
// everything is done. The copy is for users: its only server is k.Advertised, if there is one. An
// error about the copy names --write-kubeconfig; it does not keep an own file from being renewed.
func (f KubeconfigFiles) Write(k Kubeconfig) error {
	users := k
	users.Server, users.Advertised = cmp.Or(k.Advertised, k.Server), ""
	_, missing := os.Lstat(f.Path)
	err := f.writeCopy(users, missing != nil)
	if err != nil {
		if err = fmt.Errorf("--write-kubeconfig: %w", err); missing != nil {
			return err
		}
	}
	return errors.Join(err, WriteKubeconfig(f.Path, k))
}

// writeCopy writes k to the copy. The first time after a start, it may be another cluster's copy.
func (f KubeconfigFiles) writeCopy(k Kubeconfig, first bool) error {
	if f.Copy == "" {
		if err := os.Remove(notePath(f.Path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the note about an earlier copy of the kubeconfig: %w", err)
		}
		return nil
	}
	at, err := filepath.Abs(f.Copy)
	if err != nil {
		return err
	}
	note, err := json.Marshal(copyNote{at, fmt.Sprintf("%#o", f.CopyMode)})
	if err != nil {
		return err
	}
	entries, err := k.config()
	if err != nil {
		return err
	}
	_, err = merge(context.Background(), at, entries, MergeOptions{Outside: filepath.Dir(f.Path), copy: first, mode: f.CopyMode, noSync: k.NoSync})
	if errors.Is(err, ErrConflict) {
		return fmt.Errorf("%w: name another file, or remove that entry", err)
	} else if err != nil {
		return err
	}
	_, err = replace(atomicfile.Writer{NoSync: k.NoSync}, notePath(f.Path), append(note, '\n'), fileMode)
	return err
}

// RenewKubeconfigs writes the administrator's present certificate and authority to the
// kubeconfig at path, and to the copy that the server noted beside it. It makes no missing
// file, and keeps what a file says about the server. Notes name the files whose entry is not of this cluster: they are
// left alone.
func RenewKubeconfigs(store *Store, path string) (notes []Note, err error) {
	renew := func(path string, write func(Kubeconfig) error) error {
		k := store.Kubeconfig(Admin, "")
		file, err := readKubeconfig(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		own, err := store.certificates(ServerCA)
		if err != nil {
			return err
		}
		if have := file.config.Clusters[DefaultContext]; have == nil || !sharesKey(authorities(have), own) {
			notes = append(notes, Note{Warning: true, Text: fmt.Sprintf("%s has no cluster %q with the authority of this one: left as it is", path, DefaultContext)})
			return nil
		}
		k.Server, k.Advertised = KubeconfigServers(file.config)
		return write(k)
	}
	err = renew(path, func(k Kubeconfig) error { return WriteKubeconfig(path, k) })
	text, noted := os.ReadFile(notePath(path))
	if errors.Is(noted, fs.ErrNotExist) {
		return notes, err
	}
	var note copyNote
	if noted == nil {
		noted = json.Unmarshal(text, &note)
	}
	mode, wrong := strconv.ParseUint(note.Mode, 8, 9)
	if noted = errors.Join(noted, wrong); noted != nil {
		return notes, errors.Join(err, fmt.Errorf("find the copy of --write-kubeconfig: %s: %w", notePath(path), noted))
	}
	files := KubeconfigFiles{Path: path, Copy: note.Path, CopyMode: os.FileMode(mode)}
	copied := renew(note.Path, func(k Kubeconfig) error { k.Advertised = ""; return files.writeCopy(k, false) })
	if copied != nil {
		err = errors.Join(err, fmt.Errorf("renew the copy of --write-kubeconfig: %w", copied))
	}
	return notes, err
}
