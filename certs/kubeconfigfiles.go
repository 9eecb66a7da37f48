package certs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"k8s.io/client-go/tools/clientcmd"

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
// error about the copy names --write-kubeconfig.
func (f KubeconfigFiles) Write(k Kubeconfig) error {
	users := k
	users.Server, users.Advertised = cmp.Or(k.Advertised, k.Server), ""
	if err := f.writeCopy(users); err != nil {
		return fmt.Errorf("--write-kubeconfig: %w", err)
	}
	return WriteKubeconfig(f.Path, 0, k)
}

func (f KubeconfigFiles) writeCopy(k Kubeconfig) error {
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
	mode := f.CopyMode
	if mode == 0 {
		mode = fileMode
	}
	note, err := json.Marshal(copyNote{at, fmt.Sprintf("%#o", mode)})
	if err != nil {
		return err
	}
	if err := WriteKubeconfig(at, mode, k); err != nil {
		return err
	}
	_, err = replace(atomicfile.Writer{NoSync: k.NoSync}, notePath(f.Path), append(note, '\n'), fileMode)
	return err
}

// RenewKubeconfigs writes the administrator's present certificate and authority to the
// kubeconfig at path, and to the copy that the server noted beside it. It makes no missing
// file, and keeps what a file says about the server.
func RenewKubeconfigs(store *Store, path string) error {
	err := renewKubeconfig(store, path, fileMode)
	text, noted := os.ReadFile(notePath(path))
	if errors.Is(noted, fs.ErrNotExist) {
		return err
	}
	var note copyNote
	if noted == nil {
		noted = json.Unmarshal(text, &note)
	}
	mode, wrong := strconv.ParseUint(note.Mode, 8, 9)
	if noted = errors.Join(noted, wrong); noted != nil {
		return errors.Join(err, fmt.Errorf("find the copy of --write-kubeconfig: %s: %w", notePath(path), noted))
	}
	if copied := renewKubeconfig(store, note.Path, os.FileMode(mode)); copied != nil {
		err = errors.Join(err, fmt.Errorf("renew the copy of --write-kubeconfig: %w", copied))
	}
	return err
}

func renewKubeconfig(store *Store, path string, mode os.FileMode) error {
	config, err := clientcmd.LoadFromFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	k := store.Kubeconfig(Admin, "")
	if k.Server, k.Advertised = KubeconfigServers(config); k.Server == "" {
		return fmt.Errorf("%s names no cluster", path)
	}
	return WriteKubeconfig(path, mode, k)
}
