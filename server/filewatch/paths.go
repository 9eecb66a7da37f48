package filewatch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// mostLinks is how many links a path may have, as Linux has it.
const mostLinks = 40

// steps returns the paths that decide what a file contains: each link on the way to it, and the file
// that they lead to, or what is missing on that way. Their directories have no links in their own
// paths. A Secret that Kubernetes mounts is replaced by a new link in the middle (..data).
func steps(file string) []string {
	file, err := filepath.Abs(file)
	if err != nil {
		return nil
	}
	const root = string(filepath.Separator)
	var all []string
	at, rest := root, file
	for range mostLinks {
		name, after, target := "", "", ""
		for {
			name, after, _ = strings.Cut(strings.TrimLeft(rest, root), root)
			next := filepath.Join(at, name)
			if target, err = os.Readlink(next); err == nil {
				all = append(all, next)
				break
			}
			if _, missing := os.Lstat(next); missing != nil || strings.Trim(after, root) == "" {
				return append(all, next)
			}
			at, rest = next, after
		}
		if filepath.IsAbs(target) {
			at = root
		}
		rest = target + root + after // not cleaned: what is before a .. may be a link
	}
	return all
}

const later = "replaced certificates are noticed within a minute instead of at once"

// held says that a limit of inotify is reached, and what helps.
func held(what, limit string) string {
	return fmt.Sprintf("%s, because this user's programs hold all inotify %s: raise the sysctl fs.inotify.%s, or end some of these programs", later, what, limit)
}

// noWatcher says why there is no watcher.
func noWatcher(err error) string {
	if errors.Is(err, syscall.EMFILE) {
		return held("instances", "max_user_instances")
	}
	return fmt.Sprintf("%s: %v", later, err)
}

// notWatched says why a path is not watched; empty: it does not exist, of which the reader of the file tells.
func notWatched(path string, err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ""
	case errors.Is(err, syscall.ENOSPC):
		return held("watches", "max_user_watches")
	}
	return fmt.Sprintf("%s: watch %s: %v", later, path, err)
}
