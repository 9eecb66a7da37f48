package bootstrap

import (
	"context"
	"errors"
	"reflect"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/karve-k8s/karve/bootstrap/kubeadm"
)

// policyData is what RBAC's hook gets (pkg/registry/rbac/rest/storage_rbac.go), and the API server's own binding.
func policyData() *rbacrest.PolicyData {
	return &rbacrest.PolicyData{
		ClusterRoles:               append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...),
		ClusterRoleBindings:        append(append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...), *kubeadm.KubeletClientBinding()),
		Roles:                      bootstrappolicy.NamespaceRoles(),
		RoleBindings:               bootstrappolicy.NamespaceRoleBindings(),
		ClusterRolesToAggregate:    bootstrappolicy.ClusterRolesToAggregate(),
		ClusterRoleBindingsToSplit: bootstrappolicy.ClusterRoleBindingsToSplit(),
	}
}

// policyHook is upstream's hook, with that binding.
func policyHook(*Config) (string, genericapiserver.PostStartHookFunc, error) {
	return rbacrest.PostStartHookName, policyData().EnsureRBACPolicy(), nil
}

// policyComplete asks upstream's reconcilers whether they would change anything. Upstream
// also migrates ClusterRolesToAggregate and ClusterRoleBindingsToSplit, but only while one
// of the policy's own objects is missing.
func policyComplete(_ *Config, ctx context.Context, client kubernetes.Interface) (bool, error) {
	policy := policyData()
	there, err := listPolicy(ctx, client)
	if err != nil {
		return false, err
	}
	for i := range policy.ClusterRoles {
		if done, err := roleDone(reconciliation.ClusterRoleRuleOwner{ClusterRole: &policy.ClusterRoles[i]}, there); !done {
			return false, err
		}
	}
	for i := range policy.ClusterRoleBindings {
		if done, err := bindingDone(reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &policy.ClusterRoleBindings[i]}, there); !done {
			return false, err
		}
	}
	for _, inNamespace := range policy.Roles {
		for i := range inNamespace {
			if done, err := roleDone(reconciliation.RoleRuleOwner{Role: &inNamespace[i]}, there); !done {
				return false, err
			}
		}
	}
	for _, inNamespace := range policy.RoleBindings {
		for i := range inNamespace {
			if done, err := bindingDone(reconciliation.RoleBindingAdapter{RoleBinding: &inNamespace[i]}, there); !done {
				return false, err
			}
		}
	}
	return true, nil
}

// roleDone asks the reconciler only if something differs at all, because upstream's
// reconciler compares every rule with every other.
func roleDone(want reconciliation.RuleOwner, there *listed) (bool, error) {
	if has, ok := there.roles[[2]string{want.GetNamespace(), want.GetName()}]; ok &&
		reflect.DeepEqual(has.GetLabels(), want.GetLabels()) && reflect.DeepEqual(has.GetAnnotations(), want.GetAnnotations()) &&
		reflect.DeepEqual(has.GetRules(), want.GetRules()) && reflect.DeepEqual(has.GetAggregationRule(), want.GetAggregationRule()) {
		return true, nil
	}
	o := reconciliation.ReconcileRoleOptions{Role: want, Client: listedRoles{there}}
	result, err := o.Run()
	return err == nil && (result.Protected || result.Operation == reconciliation.ReconcileNone), err
}

func bindingDone(want reconciliation.RoleBinding, there *listed) (bool, error) {
	o := reconciliation.ReconcileRoleBindingOptions{RoleBinding: want, Client: listedBindings{there}}
	result, err := o.Run()
	return err == nil && (result.Protected || result.Operation == reconciliation.ReconcileNone), err
}

// listed is RBAC's state, by namespace and name.
type listed struct {
	roles    map[[2]string]reconciliation.RuleOwner
	bindings map[[2]string]reconciliation.RoleBinding
}

func listPolicy(ctx context.Context, client kubernetes.Interface) (*listed, error) {
	rbac, all := client.RbacV1(), metav1.ListOptions{}
	clusterRoles, err := rbac.ClusterRoles().List(ctx, all)
	if err != nil {
		return nil, err
	}
	clusterRoleBindings, err := rbac.ClusterRoleBindings().List(ctx, all)
	if err != nil {
		return nil, err
	}
	roles, err := rbac.Roles("").List(ctx, all)
	if err != nil {
		return nil, err
	}
	roleBindings, err := rbac.RoleBindings("").List(ctx, all)
	if err != nil {
		return nil, err
	}
	there := &listed{map[[2]string]reconciliation.RuleOwner{}, map[[2]string]reconciliation.RoleBinding{}}
	for i := range clusterRoles.Items {
		there.addRole(reconciliation.ClusterRoleRuleOwner{ClusterRole: &clusterRoles.Items[i]})
	}
	for i := range roles.Items {
		there.addRole(reconciliation.RoleRuleOwner{Role: &roles.Items[i]})
	}
	for i := range clusterRoleBindings.Items {
		there.addBinding(reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &clusterRoleBindings.Items[i]})
	}
	for i := range roleBindings.Items {
		there.addBinding(reconciliation.RoleBindingAdapter{RoleBinding: &roleBindings.Items[i]})
	}
	return there, nil
}

func (l *listed) addRole(r reconciliation.RuleOwner) {
	l.roles[[2]string{r.GetNamespace(), r.GetName()}] = r
}

func (l *listed) addBinding(b reconciliation.RoleBinding) {
	l.bindings[[2]string{b.GetNamespace(), b.GetName()}] = b
}

// listedRoles and listedBindings are what a reconciler reads from. It writes nothing unless
// it is told to confirm.
type (
	listedRoles    struct{ *listed }
	listedBindings struct{ *listed }
)

func (l listedRoles) Get(namespace, name string) (reconciliation.RuleOwner, error) {
	if r, ok := l.roles[[2]string{namespace, name}]; ok {
		return r, nil
	}
	return nil, apierrors.NewNotFound(rbacv1.Resource("roles"), name)
}

func (l listedRoles) Create(reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	return nil, errReadOnly
}

func (l listedRoles) Update(reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	return nil, errReadOnly
}

func (l listedBindings) Get(namespace, name string) (reconciliation.RoleBinding, error) {
	if b, ok := l.bindings[[2]string{namespace, name}]; ok {
		return b, nil
	}
	return nil, apierrors.NewNotFound(rbacv1.Resource("rolebindings"), name)
}

func (l listedBindings) Delete(string, string, types.UID) error { return errReadOnly }

func (l listedBindings) Create(reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	return nil, errReadOnly
}

func (l listedBindings) Update(reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	return nil, errReadOnly
}

var errReadOnly = errors.New("this is only a look")
