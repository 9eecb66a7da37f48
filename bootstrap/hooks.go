package bootstrap

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	pkgscheduling "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"
)

// A hook looks whether everything is there, with one list for each kind, and ends
// if it is; then it has nothing to do. If not, it is upstream's, which first waits
// a second: so what it repairs, and how, is upstream's by construction.
//
// It must not fail for its own reasons: upstream ends the process when a hook does.
type hook struct {
	group     string // has to be served
	upstreams genericapiserver.PostStartHookProvider
	looks     func(context.Context, kubernetes.Interface) (complete bool, err error)
}

var hooks = []hook{
	{rbacv1.GroupName, rbacrest.RESTStorageProvider{}, policyComplete},
	{schedulingv1.GroupName, schedulingrest.RESTStorageProvider{}, priorityClassesComplete},
}

// ReplaceHooks puts ours in the place of upstream's, under the same names: what
// asks /readyz for them gets the same answer. first is the server that is built
// first, others are those built on top of it, which take its hooks over.
func (c *Config) ReplaceHooks(first *genericapiserver.Config, others ...*genericapiserver.Config) error {
	first.DisabledPostStartHooks = sets.NewString(first.DisabledPostStartHooks.UnsortedList()...)
	for _, h := range hooks {
		name, upstreams, err := h.upstreams.PostStartHook()
		if err != nil {
			return fmt.Errorf("find upstream's hook for %s: %w", h.group, err)
		}
		if first.DisabledPostStartHooks.Has(name) || !c.kube.AnyResourceForGroupEnabled(h.group) {
			continue // upstream has none either: RBAC may not be an authorizer, or the group be switched off
		}
		err = first.AddPostStartHook(name, func(hc genericapiserver.PostStartHookContext) error {
			complete, err := h.look(hc)
			if complete {
				return nil
			}
			if c.Repairing != nil {
				c.Repairing(name, err)
			}
			return upstreams(hc)
		})
		if err != nil {
			return err
		}
		for _, other := range others {
			other.DisabledPostStartHooks.Insert(name)
		}
	}
	return nil
}

func (h hook) look(c genericapiserver.PostStartHookContext) (bool, error) {
	config := restclient.CopyConfig(c.LoopbackClientConfig)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return false, err
	}
	return h.looks(c, client)
}

func priorityClassesComplete(ctx context.Context, client kubernetes.Interface) (bool, error) {
	list, err := client.SchedulingV1().PriorityClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	there := sets.New[string]()
	for _, class := range list.Items {
		there.Insert(class.Name)
	}
	for _, class := range pkgscheduling.SystemPriorityClasses() {
		if !there.Has(class.Name) {
			return false, nil
		}
	}
	return true, nil
}
