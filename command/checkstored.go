package command

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/karve-k8s/karve/command/check"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/internal/version"
	"github.com/karve-k8s/karve/server/apiserver"
)

// objectsPrefix begins the keys of objects in the built-in datastore.
const objectsPrefix = "/registry/"

// checkStoredVersions looks for objects in the built-in datastore in dir that this program cannot
// read. dir is empty if another datastore is used. The check of the datastore reports a file that cannot be opened.
func checkStoredVersions(dir string) []check.Finding {
	if dir == "" {
		return nil
	}
	f := check.Finding{Check: "stored versions", Result: check.OK}
	path := filepath.Join(dir, datastore.EngineFile)
	unreadable, err := unreadable(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, sqlitefile.ErrBusy):
		f.Result, f.Found = check.Unknown, "not checked, because a server uses the datastore; a start names objects that it cannot read"
	case err != nil:
		f.Result, f.Found = check.Unknown, err.Error()
	case len(unreadable) > 0:
		f.Result, f.Found = check.Warn, "Kubernetes "+version.Kubernetes+" cannot read "+apiserver.Sentence(unreadable)
		f.Do = "delete these objects with the release that wrote them, or write them in a version that both know"
	default:
		f.Found = "Kubernetes " + version.Kubernetes + " can read all objects"
	}
	return []check.Finding{f}
}

// unreadable returns the objects of a database that this program cannot read. It keeps no values in
// memory: it finds the newest version of each key first, and then looks at those.
func unreadable(path string) ([]apiserver.Stored, error) {
	var stored apiserver.StoredVersions
	err := sqlitefile.View(path, func(c *sqlitefile.Connection) error {
		newest := map[string]int64{}
		err := c.EachRow(sqlitefile.AllRows, func(r sqlitefile.Row, _ []byte, bad error) error {
			if newest[r.Key] = r.ID; r.Tombstone() {
				delete(newest, r.Key)
			}
			return bad
		})
		if err != nil {
			return err
		}
		stored = apiserver.StoredVersions{}
		return c.EachRow(sqlitefile.AllRows, func(r sqlitefile.Row, value []byte, bad error) error {
			if key, ok := strings.CutPrefix(r.Key, objectsPrefix); ok && newest[r.Key] == r.ID {
				stored.Add(key, value)
			}
			return bad
		})
	})
	return stored.Unreadable(), err
}
