// Package nodeissuer notes in the Lease of each node whose certificate the node had when it renewed the Lease, while authorities are being replaced. So every
// server and command can tell which nodes would be locked out, also after a restart.
package nodeissuer

import (
	"context"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

type issuerKey struct{}

func isNodeLease(resource, namespace string) bool {
	return resource == "leases" && namespace == corev1.NamespaceNodeLease
}

// Note lets admission know the issuers of the certificates of clients that write nodes' Leases. A client without a certificate, such as
// this process for its simulated nodes, has an empty one.
func Note(c *genericapiserver.Config) {
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return build(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if info, ok := request.RequestInfoFrom(r.Context()); ok && isNodeLease(info.Resource, info.Namespace) {
				issuer := ""
				if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
					issuer = r.TLS.PeerCertificates[0].Issuer.CommonName
				}
				r = r.WithContext(context.WithValue(r.Context(), issuerKey{}, issuer))
			}
			api.ServeHTTP(w, r)
		}), c)
	}
}

// Admission writes the issuer into an annotation of nodes' Leases, before next admits them.
func Admission(next admission.Interface, annotation string) admission.Interface {
	return issuerAdmission{next, annotation}
}

type issuerAdmission struct {
	next       admission.Interface
	annotation string
}

// Handles implements admission.Interface.
func (a issuerAdmission) Handles(o admission.Operation) bool {
	return o == admission.Create || o == admission.Update || a.next.Handles(o)
}

// Admit implements admission.MutationInterface.
func (a issuerAdmission) Admit(ctx context.Context, attributes admission.Attributes, o admission.ObjectInterfaces) error {
	issuer, ok := ctx.Value(issuerKey{}).(string)
	if ok && isNodeLease(attributes.GetResource().Resource, attributes.GetNamespace()) && attributes.GetObject() != nil {
		lease, err := meta.Accessor(attributes.GetObject())
		if err != nil {
			return err
		}
		annotations := map[string]string{a.annotation: issuer}
		for key, value := range lease.GetAnnotations() {
			if key != a.annotation {
				annotations[key] = value
			}
		}
		lease.SetAnnotations(annotations)
	}
	if next, ok := a.next.(admission.MutationInterface); ok && next.Handles(attributes.GetOperation()) {
		return next.Admit(ctx, attributes, o)
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (a issuerAdmission) Validate(ctx context.Context, attributes admission.Attributes, o admission.ObjectInterfaces) error {
	if next, ok := a.next.(admission.ValidationInterface); ok && next.Handles(attributes.GetOperation()) {
		return next.Validate(ctx, attributes, o)
	}
	return nil
}
