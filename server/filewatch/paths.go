package filewatch

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
)

// steps returns the paths that decide what a file contains: the file, the one that it leads to if it is a link, and the link in
// the middle that Kubernetes replaces in a mounted Secret. A change of another link on the way is noticed within a minute.
func steps(file string) []string {
	file, err := filepath.Abs(file)
	if err != nil {
		return nil
	}
	all := []string{file, filepath.Join(filepath.Dir(file), "..data")}
	if target, err := filepath.EvalSymlinks(file); err == nil && target != file {
		all = append(all, target)
	}
	return all
}

const later = "replaced certificates are noticed within a minute instead of at once"

// notWatched says why a path is not watched, and what helps; empty: it does not exist, of which the reader of the file tells.
func notWatched(path string, err error) string {
	limit := "max_user_instances"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ""
	case errors.Is(err, syscall.ENOSPC):
		limit = "max_user_watches"
	case !errors.Is(err, syscall.EMFILE):
		return fmt.Sprintf("%s: watch %s: %v", later, path, err)
	}
	return fmt.Sprintf("%s, because this user's programs hold all that inotify has: raise the sysctl fs.inotify.%s, or end some of these programs", later, limit)
}
