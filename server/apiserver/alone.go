package apiserver

import (
	corev1 "k8s.io/api/core/v1"
	peerreconcilers "k8s.io/apiserver/pkg/reconcilers"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
)

// withoutPeers stops the lease that tells other API servers every ten seconds
// where this one is (UnknownVersionInteroperabilityProxy). A user who set up
// the proxy to them keeps it.
func withoutPeers(config *controlplaneapiserver.Config) {
	if r := config.PeerEndpointLeaseReconciler; r != nil && config.PeerProxy == nil {
		config.PeerEndpointLeaseReconciler = noPeers{r}
	}
}

// noPeers keeps a lease that is never written, and so is never found.
type noPeers struct {
	peerreconcilers.PeerEndpointLeaseReconciler
}

func (noPeers) UpdateLease(string, string, []corev1.EndpointPort) error { return nil }

func (noPeers) RemoveLease(string) error { return nil }
