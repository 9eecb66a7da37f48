package server

import "testing"

// Whether other servers use the storage decides how long a namespace waits, which leases are
// written and which types have a watch cache.
func TestStorageIsOwnedUnlessOthersCanUseIt(t *testing.T) {
	for _, tc := range []struct {
		config Config
		want   bool
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
		if got := tc.config.complete().parse().privateStorage(); got != tc.want {
			t.Errorf("--datastore-endpoint %q, --etcd-listen %q: %v, want %v", tc.config.DatastoreEndpoint, tc.config.EtcdListen, got, tc.want)
		}
	}
}
