package bootstrap

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	flowcontrolbootstrap "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
	pkgscheduling "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controlplane/controller/defaultservicecidr"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
	netutils "k8s.io/utils/net"

	"github.com/karve-k8s/karve/bootstrap/kubeadm"
)

// Field managers that upstream names in its own requests. All others have the name of the
// program. TestSeededClusterEqualsUpstreams compares them.
const (
	flowControlProducer = "api-priority-and-fairness-config-producer-v1"
	flowControlConsumer = "api-priority-and-fairness-config-consumer-v1"
	serviceCIDRStarter  = "kubernetes-service-cidr-controller"
	roleAggregator      = "clusterrole-aggregation-controller"
)

// objects returns all first objects, as upstream's code would send them to the API.
func (c *Config) objects() ([]object, error) {
	joining, err := c.joining()
	if err != nil {
		return nil, err
	}
	var all []object
	for _, list := range [][]object{
		c.systemNamespaces(), c.controllerAccounts(), c.policy(), c.priorityClasses(), c.flowControl(), c.serviceNetwork(), c.apiServices(), joining,
	} {
		all = append(all, list...)
	}
	return slices.DeleteFunc(all, func(o object) bool {
		return o.in.RESTOptionsGetter == nil || !o.in.ResourceEnabled(o.resource)
	}), nil
}

func (c *Config) systemNamespaces() []object {
	var all []object
	for _, name := range c.namespaces {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		made := c.kube.new(namespaces, ns)
		if c.Kubeadm != nil && name == metav1.NamespaceSystem {
			made.fill = func() { kubeadm.MarkMade(ns) }
			made.also = []metav1.ManagedFieldsEntry{owns(kubeadm.Component, metav1.ManagedFieldsOperationUpdate, "",
				`{"f:metadata":{"f:annotations":{".":{},"f:`+kubeadm.MadeAnnotation+`":{}}}}`)}
		}
		all = append(all, made)
		if c.ServiceAccounts {
			all = append(all, c.kube.new(serviceAccounts, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: name}}).by(controllerManager))
		}
		if c.RootCA != "" {
			all = append(all, c.kube.new(configMaps, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{
					Name: rootcacertpublisher.RootCACertConfigMapName, Namespace: name,
					Annotations: map[string]string{rootcacertpublisher.DescriptionAnnotation: rootcacertpublisher.Description},
				},
				Data: map[string]string{"ca.crt": c.RootCA},
			}).by(controllerManager))
		}
	}
	return all
}

// idle are ServiceAccounts of controllers that have roles and are not made, because their
// controllers are a cloud's, or off by default.
var idle = sets.New("cloud-provider", "route-controller", "service-controller", "selinux-warning-controller")

// controllerAccounts returns the ServiceAccounts that are bound to controllers' roles. The
// controller manager would make them one after the other as it starts, and wait for the
// disk each time.
func (c *Config) controllerAccounts() []object {
	if !c.ControllerAccounts {
		return nil
	}
	var subjects []rbacv1.Subject
	for _, binding := range bootstrappolicy.ControllerRoleBindings() {
		subjects = append(subjects, binding.Subjects...)
	}
	for _, binding := range bootstrappolicy.NamespaceRoleBindings()[metav1.NamespaceSystem] {
		if strings.HasPrefix(binding.Name, "system:controller:") {
			subjects = append(subjects, binding.Subjects...)
		}
	}
	var all []object
	made := idle.Clone()
	for _, s := range subjects {
		if s.Kind != rbacv1.ServiceAccountKind || made.Has(s.Name) {
			continue
		}
		made.Insert(s.Name)
		all = append(all, c.kube.new(serviceAccounts, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: s.Name, Namespace: s.Namespace}}).by(controllerManager))
	}
	return all
}

// policy returns RBAC's objects.
func (c *Config) policy() []object {
	if !c.rbac {
		return nil
	}
	var all []object
	p := policyData()
	for i := range p.ClusterRoles {
		role := &p.ClusterRoles[i]
		o := c.kube.new(clusterRoles, role)
		if role.AggregationRule != nil && c.AggregatedRoles {
			rules := aggregate(role, p.ClusterRoles)
			o.fill = func() { role.Rules = rules }
			o.also = []metav1.ManagedFieldsEntry{applied(roleAggregator, "", `{"f:rules":{}}`)}
		}
		all = append(all, o)
	}
	for i := range p.ClusterRoleBindings {
		all = append(all, c.kube.new(clusterRoleBindings, &p.ClusterRoleBindings[i]))
	}
	for _, inNamespace := range p.Roles {
		for i := range inNamespace {
			all = append(all, c.kube.new(roles, &inNamespace[i]))
		}
	}
	for _, inNamespace := range p.RoleBindings {
		for i := range inNamespace {
			all = append(all, c.kube.new(roleBindings, &inNamespace[i]))
		}
	}
	return all
}

// aggregate returns the rules with which the controller of that name would fill a role.
func aggregate(into *rbacv1.ClusterRole, all []rbacv1.ClusterRole) []rbacv1.PolicyRule {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) })
	rules := []rbacv1.PolicyRule{}
	for i := range into.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&into.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			continue // upstream's table has no such role
		}
		for _, role := range sorted {
			if role.Name == into.Name || !selector.Matches(labels.Set(role.Labels)) {
				continue
			}
			source := role.Rules
			if role.AggregationRule != nil {
				source = aggregate(&role, all)
			}
			for _, rule := range source {
				if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(r, rule) }) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules
}

func (c *Config) priorityClasses() []object {
	var all []object
	for _, class := range pkgscheduling.SystemPriorityClasses() {
		all = append(all, c.kube.new(priorityClasses, class.DeepCopy()))
	}
	return all
}

// flowControl returns the objects of API Priority and Fairness: upstream's suggested and
// mandatory configurations. Upstream updates both until somebody edits them.
func (c *Config) flowControl() []object {
	var all []object
	for _, level := range slices.Concat(flowcontrolbootstrap.SuggestedPriorityLevelConfigurations, flowcontrolbootstrap.MandatoryPriorityLevelConfigurations) {
		level := level.DeepCopy()
		metav1.SetMetaDataAnnotation(&level.ObjectMeta, flowcontrolv1.AutoUpdateAnnotationKey, "true")
		o := c.kube.new(priorityLevels, level)
		o.manager = flowControlProducer
		all = append(all, o)
	}
	for _, flow := range slices.Concat(flowcontrolbootstrap.SuggestedFlowSchemas, flowcontrolbootstrap.MandatoryFlowSchemas) {
		flow := flow.DeepCopy()
		metav1.SetMetaDataAnnotation(&flow.ObjectMeta, flowcontrolv1.AutoUpdateAnnotationKey, "true")
		o := c.kube.new(flowSchemas, flow)
		o.manager = flowControlProducer
		o.status = func() {
			flow.Status.Conditions = []flowcontrolv1.FlowSchemaCondition{{
				Type: flowcontrolv1.FlowSchemaConditionDangling, Status: flowcontrolv1.ConditionFalse, Reason: "Found",
				Message:            fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q and it exists", flow.Spec.PriorityLevelConfiguration.Name),
				LastTransitionTime: flow.CreationTimestamp,
			}}
		}
		o.also = []metav1.ManagedFieldsEntry{appliedCondition(flowControlConsumer, "Dangling", "lastTransitionTime", "message", "reason", "status", "type")}
		all = append(all, o)
	}
	return all
}

// serviceNetwork returns the default ServiceCIDR, and the kubernetes Service with its
// address. The endpoints are not here: the API server adds its own when it serves. A
// Service with a node port is not here either, because upstream's allocator has to know of
// it first.
func (c *Config) serviceNetwork() []object {
	cidr := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: defaultservicecidr.DefaultServiceCIDRName},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: c.service.ranges},
	}
	o := c.kube.new(serviceCIDRs, cidr)
	o.status = func() {
		cidr.Status.Conditions = []metav1.Condition{{
			Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue,
			Message: "Kubernetes default Service CIDR is ready", LastTransitionTime: cidr.CreationTimestamp,
		}}
	}
	o.also = []metav1.ManagedFieldsEntry{appliedCondition(serviceCIDRStarter, "Ready", "lastTransitionTime", "message", "status", "type")}
	all := []object{o}
	if c.service.ip == nil || c.service.nodePort != 0 {
		return all
	}
	singleStack := corev1.IPFamilyPolicySingleStack
	kubernetes := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: "kubernetes", Namespace: metav1.NamespaceDefault,
			Labels: map[string]string{"provider": "kubernetes", "component": "apiserver"},
		},
		Spec: corev1.ServiceSpec{
			ClusterIP: c.service.ip.String(), IPFamilyPolicy: &singleStack,
			Type: corev1.ServiceTypeClusterIP, SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{Name: "https", Protocol: corev1.ProtocolTCP,
				Port: int32(c.service.port), TargetPort: intstr.FromInt32(int32(c.service.target))}},
		},
	}
	family := corev1.IPv4Protocol
	if netutils.IsIPv6(c.service.ip) {
		family = corev1.IPv6Protocol
	}
	o = c.kube.new(services, kubernetes)
	o.fill = func() {
		kubernetes.Spec.ClusterIPs = []string{kubernetes.Spec.ClusterIP}
		kubernetes.Spec.IPFamilies = []corev1.IPFamily{family}
	}
	address := c.kube.new(ipAddresses, &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name:   c.service.ip.String(),
			Labels: map[string]string{networkingv1.LabelIPAddressFamily: string(family), networkingv1.LabelManagedBy: ipallocator.ControllerName},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: kubernetes.Namespace, Name: kubernetes.Name,
		}},
	})
	return append(all, o, address)
}

// apiServices returns one for each version of each enabled group. If no resource of a
// version turns out to be served, upstream's controller deletes its APIService, as after an
// upgrade.
func (c *Config) apiServices() []object {
	var all []object
	for gv, priority := range c.priorities {
		if !enabled(c.kube.APIResourceConfigSource, gv) && !enabled(c.extensions, gv) {
			continue
		}
		all = append(all, c.aggregator.new(apiServices, &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group, Labels: map[string]string{autoregister.AutoRegisterManagedLabel: "onstart"}},
			Spec: apiregistrationv1.APIServiceSpec{Group: gv.Group, Version: gv.Version,
				GroupPriorityMinimum: priority.Group, VersionPriority: priority.Version},
		}))
	}
	return all
}

func enabled(in serverstorage.APIResourceConfigSource, gv schema.GroupVersion) bool {
	config, ok := in.(*serverstorage.ResourceConfig)
	return ok && config.GroupVersionConfigs[gv]
}

// joining returns the objects for `kubeadm join`.
func (c *Config) joining() ([]object, error) {
	if c.Kubeadm == nil {
		return nil, nil
	}
	objects, err := c.Kubeadm.Objects()
	if err != nil {
		return nil, err
	}
	var all []object
	for _, o := range objects {
		var of *kind
		switch o.(type) {
		case *corev1.ConfigMap:
			of = configMaps
		case *rbacv1.ClusterRole:
			of = clusterRoles
		case *rbacv1.ClusterRoleBinding:
			of = clusterRoleBindings
		case *rbacv1.Role:
			of = roles
		case *rbacv1.RoleBinding:
			of = roleBindings
		default:
			return nil, fmt.Errorf("no storage is known for %T", o)
		}
		all = append(all, c.kube.new(of, o).by(kubeadm.Component))
	}
	return all, nil
}
