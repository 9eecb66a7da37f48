package replacements

import (
	"context"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/admissionregistration"
	admissionregistrationv1 "k8s.io/client-go/informers/admissionregistration/v1"
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
	return promptGroup{f.SharedInformerFactory.Admissionregistration(), f.ctx}
}

type promptGroup struct {
	admissionregistration.Interface
	ctx context.Context
}

func (g promptGroup) V1() admissionregistrationv1.Interface {
	return promptVersion{g.Interface.V1(), g.ctx}
}

// promptVersion has the types that the plugins read: see NewPolicySource's callers in
// k8s.io/apiserver pkg/admission/plugin/policy/{validating,mutating}/plugin.go.
type promptVersion struct {
	admissionregistrationv1.Interface
	ctx context.Context
}

func (v promptVersion) ValidatingAdmissionPolicies() admissionregistrationv1.TypedValidatingAdmissionPolicyInformer {
	return promptValidating{v.Interface.ValidatingAdmissionPolicies(), v.ctx}
}

func (v promptVersion) ValidatingAdmissionPolicyBindings() admissionregistrationv1.TypedValidatingAdmissionPolicyBindingInformer {
	return promptValidatingBindings{v.Interface.ValidatingAdmissionPolicyBindings(), v.ctx}
}

func (v promptVersion) MutatingAdmissionPolicies() admissionregistrationv1.TypedMutatingAdmissionPolicyInformer {
	return promptMutating{v.Interface.MutatingAdmissionPolicies(), v.ctx}
}

func (v promptVersion) MutatingAdmissionPolicyBindings() admissionregistrationv1.TypedMutatingAdmissionPolicyBindingInformer {
	return promptMutatingBindings{v.Interface.MutatingAdmissionPolicyBindings(), v.ctx}
}

type promptValidating struct {
	admissionregistrationv1.TypedValidatingAdmissionPolicyInformer
	ctx context.Context
}

func (i promptValidating) Informer() cache.SharedIndexInformer {
	return promptInformer{i.TypedValidatingAdmissionPolicyInformer.Informer(), i.ctx}
}

type promptValidatingBindings struct {
	admissionregistrationv1.TypedValidatingAdmissionPolicyBindingInformer
	ctx context.Context
}

func (i promptValidatingBindings) Informer() cache.SharedIndexInformer {
	return promptInformer{i.TypedValidatingAdmissionPolicyBindingInformer.Informer(), i.ctx}
}

type promptMutating struct {
	admissionregistrationv1.TypedMutatingAdmissionPolicyInformer
	ctx context.Context
}

func (i promptMutating) Informer() cache.SharedIndexInformer {
	return promptInformer{i.TypedMutatingAdmissionPolicyInformer.Informer(), i.ctx}
}

type promptMutatingBindings struct {
	admissionregistrationv1.TypedMutatingAdmissionPolicyBindingInformer
	ctx context.Context
}

func (i promptMutatingBindings) Informer() cache.SharedIndexInformer {
	return promptInformer{i.TypedMutatingAdmissionPolicyBindingInformer.Informer(), i.ctx}
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
