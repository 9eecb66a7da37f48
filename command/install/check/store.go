package check

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/kineimport"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// checkStore checks the existing database, as a start would.
func checkStore(t Target) Finding {
	const check = "datastore"
	if t.StoreDir == "" {
		return found(check, OK, "", "%s: not checked here", t.Store)
	}
	path := filepath.Join(t.StoreDir, datastore.EngineFile)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if err := kineimport.Waiting(t.StoreDir); err != nil {
			return found(check, Fail, "import it, or choose another --data-dir", "%v", err)
		}
		return found(check, OK, "", "none yet; a start creates it")
	}
	look, err := t.Look(path)
	switch {
	case errors.Is(err, sqlitefile.ErrNewerSchema):
		return found(check, Fail, "use the newer release, or restore a backup of this one", "%v", err)
	case errors.Is(err, sqlitefile.ErrForeign):
		return found(check, Fail, "choose another --data-dir", "%v", err)
	case errors.Is(err, datastore.ErrCorrupt):
		return found(check, Fail, "put a backup in its place (karve datastore restore FILE), or save what can be read (karve datastore salvage)", "%v", err)
	case errors.Is(err, sqlitefile.ErrBusy):
		return found(check, Fail, "close it in the other program", "%v", err)
	case err != nil:
		return found(check, Fail, "run this as the server's user or root", "%v", err)
	}
	return found(check, OK, "", "schema %d, revision %d, %s", look.SchemaVersion, look.Revision, size(look.Bytes+look.WALBytes))
}
