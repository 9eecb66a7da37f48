package servertest

import (
	"strings"
	"testing"

	"github.com/karve-k8s/karve/servertest/process"
)

// Snapshot takes a snapshot of the cluster as it is now, with which [Server.Fork] begins.
// It waits a few seconds at most for the cluster to come to rest.
func (s *Server) Snapshot(t testing.TB) {
	t.Helper()
	s.base.Snapshot(t)
}

// fork starts another cluster with the options of this one: in this process if it can run
// beside the others, and otherwise in a child.
func (i *instance) fork(snapshot, dir string) (process.Instance, error) {
	config := i.config
	config.DataDir, config.ForkFrom, config.SecurePort = dir, snapshot, 0
	config.EtcdListen, config.WriteKubeconfig = "", "" // these exist once only
	if !strings.HasPrefix(config.DatastoreEndpoint, "memory:") {
		config.DatastoreEndpoint = relaxed(dir)
	}
	other := &instance{config: config, gates: i.gates, separate: i.separate}
	if err := other.start(); err != nil {
		return nil, err
	}
	other.config.ForkFrom = "" // it is a fork now, also after a restart
	return other, nil
}

// Fork returns another cluster with the same objects, certificates and kinds as this one
// had at its last [Server.Snapshot]. If there was none, Fork takes one now. The fork
// belongs to the test until the test ends. It runs beside this cluster and other forks, and
// has the options of this one, except fixed ports, files and directories. A client of the
// fork must end with the test: the same control plane becomes the next fork, once it is as
// the snapshot was.
//
// This cluster must still run. So tests that use forks are subtests of its test.
func (s *Server) Fork(t testing.TB) *Server {
	t.Helper()
	run, cluster := s.base.Fork(t)
	fork := newServer(cluster, run.(*instance))
	t.Cleanup(func() { fork.base.End(t) })
	return fork
}
