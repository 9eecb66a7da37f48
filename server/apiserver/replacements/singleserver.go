package replacements

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	peerreconcilers "k8s.io/apiserver/pkg/reconcilers"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
)

// WithoutPeers stops the lease that tells other API servers every ten seconds
// where this one is (UnknownVersionInteroperabilityProxy). A user who set up
// the proxy to them keeps it.
func WithoutPeers(config *controlplaneapiserver.Config) {
	if r := config.PeerEndpointLeaseReconciler; r != nil && config.PeerProxy == nil {
		config.PeerEndpointLeaseReconciler = noPeers{r}
	}
}

// WithoutEndpointLease makes the endpoints of the kubernetes Service those of the one server:
// no lease is written every ten seconds, and addresses of earlier starts are removed
// immediately.
func WithoutEndpointLease(o *options.ServerRunOptions) {
	o.EndpointReconcilerType = string(reconcilers.MasterCountReconcilerType)
}

// identityLeaseRenewal is how often the API server's identity lease is written. It lasts
// for an hour (IdentityLeaseDurationSeconds), and upstream writes it every ten
// seconds, which is most of what an idle cluster writes.
const identityLeaseRenewal = 10 * time.Minute

var upstreamsIdentityLeaseRenewal = controlplaneapiserver.IdentityLeaseRenewIntervalPeriod

// RenewIdentityRarely sets how often the servers of this process that start from now on
// renew their identity leases. Upstream's own interval is for rarely false.
func RenewIdentityRarely(rarely bool) {
	controlplaneapiserver.IdentityLeaseRenewIntervalPeriod = upstreamsIdentityLeaseRenewal
	if rarely {
		controlplaneapiserver.IdentityLeaseRenewIntervalPeriod = identityLeaseRenewal
	}
}

// noPeers keeps a lease that is never written, and so is never found.
type noPeers struct {
	peerreconcilers.PeerEndpointLeaseReconciler
}

func (noPeers) UpdateLease(string, string, []corev1.EndpointPort) error { return nil }

func (noPeers) RemoveLease(string) error { return nil }
