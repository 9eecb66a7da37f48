package membership

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/atomicfile"
)

// servedFile is the name of the file, among the keys, that says that a cluster has run with them. It is in backups and
// copies of the keys, too.
const servedFile = "served"

// ErrEmpty means that the keys of a server have served a cluster, and the datastore has none.
var ErrEmpty = errors.New("the datastore has no cluster, and the keys of this server have served one")

// Served records that a cluster has been ready with the keys in dir. A later start on an empty datastore is refused with
// [ErrEmpty]. Call it when the cluster is ready, and not earlier: a power cut may take the first writes of a new cluster with it.
func Served(dir string) error {
	file := filepath.Join(dir, servedFile)
	if there, err := directory.Exists(file); err != nil || there {
		return err
	}
	return atomicfile.Write(file, []byte("A cluster has been ready with these keys. While this file is here, no server makes a new one with them.\n"), 0o600)
}

// checkServed returns [ErrEmpty] for a server whose keys have served a cluster. The datastore has none. Nodes and clients would trust a
// new one: kubelets would end their Pods.
func (s Server) checkServed() error {
	file := filepath.Join(s.Certs.Dir, servedFile)
	if there, err := directory.Exists(file); err != nil || !there || !s.Lasting {
		return err
	}
	return fmt.Errorf("%w. Is its disk mounted, and --datastore-endpoint right? Bring the data back (karve datastore restore, karve datastore migrate, or your database's tools), "+
		"or use a new --data-dir for another cluster. To begin anew with the keys in %s, which nodes and kubeconfigs of the former cluster trust, remove %s", ErrEmpty, s.Certs.Dir, file)
}
