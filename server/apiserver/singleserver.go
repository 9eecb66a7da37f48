package apiserver

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	peerreconcilers "k8s.io/apiserver/pkg/reconcilers"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
)

// withoutPeers stops the lease with which a server tells other API servers its address every
// ten seconds (UnknownVersionInteroperabilityProxy). If the user has set up the proxy to
// peers, the lease stays.
func withoutPeers(config *controlplaneapiserver.Config) {
	if r := config.PeerEndpointLeaseReconciler; r != nil && config.PeerProxy == nil {
		config.PeerEndpointLeaseReconciler = noPeers{r}
	}
}

// identityLeaseRenewal is how often the API server's identity lease is written. The lease is
// valid for an hour (IdentityLeaseDurationSeconds). Upstream writes it every ten seconds,
// which is most of what an idle cluster writes.
const identityLeaseRenewal = 10 * time.Minute

// identityRenewal guards upstream's variable, which its constructor of a server reads.
var identityRenewal sync.Mutex

// renewIdentity calls build, which makes an API server. If rarely is true, that server renews its
// identity lease rarely, and otherwise at upstream's interval.
func renewIdentity(rarely bool, build func()) {
	identityRenewal.Lock()
	defer identityRenewal.Unlock()
	if rarely {
		upstreams := controlplaneapiserver.IdentityLeaseRenewIntervalPeriod
		controlplaneapiserver.IdentityLeaseRenewIntervalPeriod = identityLeaseRenewal
		defer func() { controlplaneapiserver.IdentityLeaseRenewIntervalPeriod = upstreams }()
	}
	build()
}

// peersDelay is how long the creation of a custom resource waits if its definition was established less than that
// ago, so that other API servers have seen the definition.
const peersDelay = 2 * time.Second

// withoutPeersDelay is a transform for the informer from which the handler of custom resources reads definitions. A
// definition that was just established has been so for a while. The definition itself is unchanged, unless one of
// upstream's controllers writes its status again.
func withoutPeersDelay(object any) (any, error) {
	definition, ok := object.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return object, nil
	}
	if c := apihelpers.FindCRDCondition(definition, apiextensionsv1.Established); c != nil && time.Since(c.LastTransitionTime.Time) < peersDelay {
		c.LastTransitionTime.Time = c.LastTransitionTime.Add(-peersDelay)
	}
	return definition, nil
}

// noPeers is a lease that is never written, so no peer finds it.
type noPeers struct {
	peerreconcilers.PeerEndpointLeaseReconciler
}

func (noPeers) UpdateLease(string, string, []corev1.EndpointPort) error { return nil }

func (noPeers) RemoveLease(string) error { return nil }
