package apiserver

import (
	"testing"

	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
)

// The interval of upstream's is as it was when a server has been built.
func TestIdentityIntervalStays(t *testing.T) {
	upstreams := controlplaneapiserver.IdentityLeaseRenewIntervalPeriod
	for _, rarely := range []bool{true, false} {
		renewIdentity(rarely, func() {
			if got := controlplaneapiserver.IdentityLeaseRenewIntervalPeriod; (got > upstreams) != rarely {
				t.Errorf("rarely %v: %v, upstream's is %v", rarely, got, upstreams)
			}
		})
		if got := controlplaneapiserver.IdentityLeaseRenewIntervalPeriod; got != upstreams {
			t.Errorf("got %v afterwards, want %v", got, upstreams)
		}
	}
}
