package controllers

import (
	"context"
	"fmt"
	"sync"
	"weak"

	apiextensionsscheme "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/scheme"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	k8sscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/validatingadmissionpolicystatus"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
)

// policyStatusController checks the types in ValidatingAdmissionPolicies. It is upstream's
// controller, built like newValidatingAdmissionPolicyStatusController does
// (cmd/kube-controller-manager/app), except for the schemas of the built-in types. Upstream
// builds them all in advance and keeps them, even without policies: 7 MB.
type policyStatusController struct {
	*validatingadmissionpolicystatus.Controller
	workers int
}

func newPolicyStatusController(_ context.Context, shared app.ControllerContext) (app.Controller, error) {
	discovery, err := shared.ClientBuilder.DiscoveryClient(names.ValidatingAdmissionPolicyStatusController)
	if err != nil {
		return nil, fmt.Errorf("create discovery client for policy status controller: %w", err)
	}
	client, err := shared.NewClient(names.ValidatingAdmissionPolicyStatusController)
	if err != nil {
		return nil, fmt.Errorf("create client for policy status controller: %w", err)
	}
	controller, err := validatingadmissionpolicystatus.NewController(
		shared.InformerFactory.Admissionregistration().V1().ValidatingAdmissionPolicies(),
		client.AdmissionregistrationV1().ValidatingAdmissionPolicies(),
		&validating.TypeChecker{
			SchemaResolver: &schemas{others: &resolver.ClientDiscoveryResolver{Discovery: discovery}},
			RestMapper:     shared.RESTMapper,
		})
	if err != nil {
		return nil, fmt.Errorf("create policy status controller: %w", err)
	}
	workers := shared.ComponentConfig.ValidatingAdmissionPolicyStatusController.ConcurrentPolicySyncs
	return policyStatusController{controller, int(workers)}, nil
}

func (policyStatusController) Name() string { return names.ValidatingAdmissionPolicyStatusController }

func (c policyStatusController) Run(ctx context.Context) { c.Controller.Run(ctx, c.workers) }

// schemas resolves the schemas of built-in types and of others. Those of built-in types are
// built when a policy needs them, and kept until the next garbage collection.
type schemas struct {
	others  resolver.SchemaResolver
	mu      sync.Mutex
	builtIn weak.Pointer[resolver.DefinitionsSchemaResolver]
}

// ResolveSchema implements resolver.SchemaResolver.
func (s *schemas) ResolveSchema(gvk schema.GroupVersionKind) (*spec.Schema, error) {
	return s.definitions().Combine(s.others).ResolveSchema(gvk)
}

func (s *schemas) definitions() *resolver.DefinitionsSchemaResolver {
	s.mu.Lock()
	defer s.mu.Unlock()
	if built := s.builtIn.Value(); built != nil {
		return built
	}
	built := resolver.NewDefinitionsSchemaResolver(generatedopenapi.GetOpenAPIDefinitions, k8sscheme.Scheme, apiextensionsscheme.Scheme)
	s.builtIn = weak.Make(built)
	return built
}
