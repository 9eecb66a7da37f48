package server

import "testing"

// Whether other servers use the storage decides how long a namespace waits, which leases are
// written and which types have a watch cache. If they do, a server without controllers leaves the manifests and the objects for
// kubeadm join to the one that runs them.
func TestStorageIsPrivateUnlessOthersCanUseIt(t *testing.T) {
	for _, tc := range []struct {
		config  Config
		private bool
	}{
		{Config{}, true},
		{Config{DatastoreEndpoint: "sqlite:///x"}, true},
		{Config{DatastoreEndpoint: "memory://"}, true},
		{Config{DatastoreEndpoint: "http://etcd:2379"}, false},
		{Config{DatastoreEndpoint: "postgres://me@db/x"}, false},
		{Config{EtcdListen: "https://:2379"}, false},
		{Config{EtcdListen: "http://127.0.0.1:0"}, false},
		{Config{DatastoreEndpoint: "memory://", EtcdListen: "https://:2379"}, false},
	} {
		plan := tc.config.complete().parse()
		acts := plan.actsForCluster()
		plan.NoControllers = true
		if got := plan.privateStorage(); got != tc.private || !acts || plan.actsForCluster() != tc.private {
			t.Errorf("--datastore-endpoint %q, --etcd-listen %q: private storage %v, want %v; acts for the cluster: %v, and %v without controllers",
				tc.config.DatastoreEndpoint, tc.config.EtcdListen, got, tc.private, acts, plan.actsForCluster())
		}
	}
}
