package servertest

import (
	"strings"
	"testing"

	"github.com/karve-k8s/karve/servertest/process"
)

// Snapshot remembers the cluster as it is now: what [Server.Fork] begins with. It waits
// some seconds at most for the cluster to come to rest.
func (s *Server) Snapshot(t testing.TB) {
	t.Helper()
	s.base.Snapshot(t)
}

// fork starts another cluster with the options of this one, here if it can be beside
// those that run.
func (i *instance) fork(snapshot, dir string) (process.Instance, error) {
	config := i.config
	config.DataDir, config.ForkFrom, config.SecurePort = dir, snapshot, 0
	config.EtcdListen, config.WriteKubeconfig, config.StartupTrace = "", "", "" // there is one of each
	if !strings.HasPrefix(config.DatastoreEndpoint, "memory:") {
		config.DatastoreEndpoint = relaxed(dir)
	}
	other := &instance{config: config, gates: i.gates, separate: i.separate}
	if err := other.start(); err != nil {
		return nil, err
	}
	other.config.ForkFrom = "" // it is one now, also after a restart
	return other, nil
}

// Fork is another cluster with the same objects, certificates and kinds as this one had
// at its last [Server.Snapshot], which is taken now if there was none. It is the test's
// own until that ends, runs beside this one and other forks, and has the options of
// this one, but for fixed ports, files and directories. A client of the fork must end
// with the test: the same control plane is the next fork, once it is as the snapshot
// was.
//
// This cluster has to be there: the tests with forks are its test's subtests.
func (s *Server) Fork(t testing.TB) *Server {
	t.Helper()
	run, cluster := s.base.Fork(t)
	fork := newServer(cluster, run.(*instance))
	t.Cleanup(func() { fork.base.End(t) })
	return fork
}
