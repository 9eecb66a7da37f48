package bootstrap

import (
	"context"
	"fmt"
	"slices"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	pkgscheduling "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/pkg/controlplane/controller/defaultservicecidr"
	flowcontrolrest "k8s.io/kubernetes/pkg/registry/flowcontrol/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"
)

// A hook checks whether everything exists, with one list for each kind. If it does, the
// hook is done. If not, the hook calls upstream's, which waits first. So upstream's code
// decides what to repair, and how.
//
// It never fails, because upstream ends the process when a hook fails. What upstream's hook writes may be
// refused by a webhook or a policy of the cluster, and only a server that goes on lets an administrator remove that.
// So upstream's hook is called again until it succeeds.
type hook struct {
	group     string // it has to be served
	upstreams func(*Config) (name string, run genericapiserver.PostStartHookFunc, err error)
	looks     func(*Config, context.Context, kubernetes.Interface) (complete bool, err error) // nil: upstream's hook looks
	// goesOn says that upstream's hook leaves something running. It is then called in any
	// case, but nothing waits for it. It is not reported either: it waits a tenth of a
	// second, the others a whole one.
	goesOn bool
}

var hooks = []hook{
	{rbacv1.GroupName, policyHook, policyComplete, false},
	{schedulingv1.GroupName, provided(schedulingrest.RESTStorageProvider{}), priorityClassesComplete, false},
	{networkingv1.GroupName, (*Config).serviceCIDRHook, (*Config).serviceCIDRComplete, true},
	{flowcontrolv1.GroupName, (*Config).flowControlHook, nil, false},
}

// hookRetry is how long Karve waits before it calls upstream's hook again.
const hookRetry = time.Second

func provided(p genericapiserver.PostStartHookProvider) func(*Config) (string, genericapiserver.PostStartHookFunc, error) {
	return func(*Config) (string, genericapiserver.PostStartHookFunc, error) { return p.PostStartHook() }
}

// ReplaceHooks replaces upstream's hooks with Karve's, under the same names, so that a
// client that asks /readyz for them gets the same answer. Unless all is set, it replaces the hook of RBAC only, which
// makes a binding that upstream does not know. first is the server that is built
// first. others are those built on top of it, which take over its hooks. ReplaceHooks returns the names of
// the hooks, which a stop may interrupt.
func (c *Config) ReplaceHooks(all bool, first *genericapiserver.Config, others ...*genericapiserver.Config) (replaced []string, err error) {
	first.DisabledPostStartHooks = sets.NewString(first.DisabledPostStartHooks.UnsortedList()...)
	for _, h := range hooks {
		if !all && h.group != rbacv1.GroupName {
			continue
		}
		if !c.kube.AnyResourceForGroupEnabled(h.group) { // upstream has no hook, and its informers would never be synced
			continue
		}
		name, upstreams, err := h.upstreams(c)
		if err != nil {
			return nil, fmt.Errorf("find upstream's hook for %s: %w", h.group, err)
		}
		if upstreams == nil || first.DisabledPostStartHooks.Has(name) {
			continue // upstream has none either: RBAC is no authorizer
		}
		err = first.AddPostStartHook(name, func(hc genericapiserver.PostStartHookContext) error {
			return h.run(c, name, upstreams, hc)
		})
		if err != nil {
			return nil, err
		}
		for _, other := range others {
			other.DisabledPostStartHooks.Insert(name)
		}
		replaced = append(replaced, name)
	}
	return replaced, nil
}

func (h hook) run(c *Config, name string, upstreams genericapiserver.PostStartHookFunc, hc genericapiserver.PostStartHookContext) error {
	if h.looks == nil {
		return c.repeat(name, upstreams, hc)
	}
	complete, err := h.look(c, hc)
	switch {
	case complete && h.goesOn:
		go func() { _ = upstreams(hc) }() // it fails only if it cannot make a client, and look has made one
		return nil
	case complete:
		return nil
	}
	if c.Log != nil && !h.goesOn {
		if err != nil {
			c.Log.Warnf("%s: cannot read the existing objects; trying again: %v", name, err)
		} else {
			c.Log.Infof("%s: some objects that Kubernetes needs are missing; creating them", name)
		}
	}
	return c.repeat(name, upstreams, hc)
}

// repeat calls upstream's hook until it succeeds or the server stops.
func (c *Config) repeat(name string, upstreams genericapiserver.PostStartHookFunc, hc genericapiserver.PostStartHookContext) error {
	if c.Report != nil {
		hc.LoopbackClientConfig = c.Report(hc.LoopbackClientConfig)
	}
	for {
		done := make(chan error, 1)
		go func() { done <- upstreams(hc) }()
		select {
		case err := <-done:
			if err == nil || hc.Err() != nil {
				return nil
			}
			klog.FromContext(hc).Error(err, "A post-start hook has failed; it is called again", "hook", name)
		case <-hc.Done():
			return nil
		}
		select {
		case <-time.After(hookRetry):
		case <-hc.Done():
			return nil
		}
	}
}

func (h hook) look(c *Config, hc genericapiserver.PostStartHookContext) (bool, error) {
	config := restclient.CopyConfig(hc.LoopbackClientConfig)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return false, err
	}
	return h.looks(c, hc, client)
}

func priorityClassesComplete(_ *Config, ctx context.Context, client kubernetes.Interface) (bool, error) {
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

// flowControlHook is upstream's hook that makes FlowSchemas and PriorityLevelConfigurations.
func (c *Config) flowControlHook() (string, genericapiserver.PostStartHookFunc, error) {
	return flowcontrolrest.RESTStorageProvider{InformerFactory: c.informers}.PostStartHook()
}

// serviceCIDRHook is upstream's hook that makes the ServiceCIDR of the Service range and
// then maintains it (pkg/controlplane/instance.go).
func (c *Config) serviceCIDRHook() (string, genericapiserver.PostStartHookFunc, error) {
	const name = "start-kubernetes-service-cidr-controller"
	return name, func(hc genericapiserver.PostStartHookContext) error {
		client, err := kubernetes.NewForConfig(hc.LoopbackClientConfig)
		if err != nil {
			return err
		}
		defaultservicecidr.NewController(c.service.primary, c.service.secondary, client).Start(hc)
		return nil
	}, nil
}

// serviceCIDRComplete reports whether the controller has nothing to do.
func (c *Config) serviceCIDRComplete(ctx context.Context, client kubernetes.Interface) (bool, error) {
	cidr, err := client.NetworkingV1().ServiceCIDRs().Get(ctx, defaultservicecidr.DefaultServiceCIDRName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && cidr.DeletionTimestamp == nil && slices.Equal(cidr.Spec.CIDRs, c.service.ranges) &&
		meta.IsStatusConditionTrue(cidr.Status.Conditions, networkingv1.ServiceCIDRConditionReady), err
}
