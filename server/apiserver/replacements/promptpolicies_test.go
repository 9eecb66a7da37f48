package replacements

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission/plugin/policy/generic"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

// Policies are compiled as soon as their informers have synced, and not at the next of upstream's
// checks. When the server stops before, they wait as upstream's do.
func TestPoliciesArePrompt(t *testing.T) {
	late := 250 * time.Millisecond // between two checks
	for name, tc := range map[string]struct {
		prompt bool
		stop   time.Duration
		want   time.Duration
	}{
		"prompt":                     {true, time.Hour, late},
		"upstream's":                 {false, time.Hour, 300 * time.Millisecond},
		"the server stops":           {true, 110 * time.Millisecond, 310 * time.Millisecond},
		"stopped from the beginning": {true, 0, 300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				stopping, stop := context.WithTimeout(ctx, tc.stop)
				defer stop()
				shared := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
				defer shared.Shutdown()
				defer cancel()
				f := shared
				if tc.prompt {
					f = PromptPolicies(stopping, f)
				}
				v1 := f.Admissionregistration().V1()
				began := time.Now()
				sources := map[string]interface {
					Run(context.Context) error
					HasSynced() bool
				}{
					"validating": source[*validating.Policy, *validating.PolicyBinding](v1.ValidatingAdmissionPolicies().Informer(), v1.ValidatingAdmissionPolicyBindings().Informer()),
					"mutating":   source[*mutating.Policy, *mutating.PolicyBinding](v1.MutatingAdmissionPolicies().Informer(), v1.MutatingAdmissionPolicyBindings().Informer()),
				}
				for _, s := range sources {
					go s.Run(ctx)
				}
				time.Sleep(late)
				shared.StartWithContext(ctx)
				shared.WaitForCacheSyncWithContext(ctx)
				for name, s := range sources {
					for synctest.Wait(); !s.HasSynced(); synctest.Wait() {
						time.Sleep(time.Millisecond)
					}
					if took := time.Since(began); took != tc.want {
						t.Errorf("%s: ready after %v, want %v", name, took, tc.want)
					}
				}
			})
		})
	}
}

func source[P, B runtime.Object](policies, bindings cache.SharedIndexInformer) generic.Source[generic.PolicyHook[P, B, generic.Evaluator]] {
	return generic.NewPolicySource(policies, bindings,
		func(P) generic.PolicyAccessor { return nil }, func(B) generic.BindingAccessor { return nil },
		func(P) generic.Evaluator { return nil }, nil, nil, nil)
}
