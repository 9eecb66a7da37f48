package replacements

import (
	"context"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/admissionregistration"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/tools/cache"
)

// PromptPolicies returns the informers of f for the admission plugins of the three servers. The
// plugins for policies compile the policies once the informers of these have synced, and until
// then every write waits. Upstream checks every 100 ms from the moment when the plugins are made.
// With PromptPolicies, the first check lasts until the informer has synced, or ctx ends.
//
// Give the result to nothing else: other callers of HasSynced do not expect that it waits.
func PromptPolicies(ctx context.Context, f informers.SharedInformerFactory) informers.SharedInformerFactory {
	return promptFactory{f, ctx}
}

type promptFactory struct {
	informers.SharedInformerFactory
	ctx context.Context
}

func (f promptFactory) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(f, metav1.NamespaceAll, nil)
}

// InformerFor is what Admissionregistration calls for each informer. The types are those that the plugins read: see
// NewPolicySource's callers in k8s.io/apiserver pkg/admission/plugin/policy/{validating,mutating}/plugin.go.
func (f promptFactory) InformerFor(obj runtime.Object, make internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	informer := f.SharedInformerFactory.InformerFor(obj, make)
	switch obj.(type) {
	case *admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding,
		*admissionv1.MutatingAdmissionPolicy, *admissionv1.MutatingAdmissionPolicyBinding:
		return promptInformer{informer, f.ctx}
	}
	return informer
}

// promptInformer is an informer whose HasSynced waits until the answer is yes.
type promptInformer struct {
	cache.SharedIndexInformer
	ctx context.Context
}

func (i promptInformer) HasSynced() bool {
	select {
	case <-i.HasSyncedChecker().Done():
	case <-i.ctx.Done():
	}
	return i.SharedIndexInformer.HasSynced()
}
