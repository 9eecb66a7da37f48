package controllers

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
)

// sharedWithAPIServer are the types for which the controllers use the API server's
// informers. Otherwise each of the two decodes and keeps every object, and has a watch
// with a dozen goroutines for each type.
//
// Namespaces and quotas are not shared, because options of the controllers set their
// resync, and the resync of a started informer cannot become shorter. Resource claims and
// slices are not shared, because both parts add an index of the same name.
var sharedWithAPIServer = []runtime.Object{
	&corev1.LimitRange{}, &corev1.Node{}, &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}, &corev1.Pod{},
	&corev1.Secret{}, &corev1.ServiceAccount{}, &corev1.Service{},
	&admissionv1.MutatingAdmissionPolicy{}, &admissionv1.MutatingAdmissionPolicyBinding{}, &admissionv1.MutatingWebhookConfiguration{},
	&admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}, &admissionv1.ValidatingWebhookConfiguration{},
	&discoveryv1.EndpointSlice{}, &flowcontrolv1.FlowSchema{}, &flowcontrolv1.PriorityLevelConfiguration{},
	&networkingv1.IngressClass{}, &networkingv1.IPAddress{}, &networkingv1.ServiceCIDR{}, &nodev1.RuntimeClass{},
	&rbacv1.ClusterRoleBinding{}, &rbacv1.ClusterRole{}, &rbacv1.RoleBinding{}, &rbacv1.Role{},
	&resourcev1.DeviceClass{}, &schedulingv1.PriorityClass{},
	&storagev1.CSIDriver{}, &storagev1.StorageClass{}, &storagev1.VolumeAttachment{},
}

// forgetData takes from an object of the controllers' informer of ConfigMaps what no controller reads. The root CA
// publisher and the bootstrap signer read one ConfigMap each, by its name; the garbage collector reads metadata.
func forgetData(object any) (any, error) {
	if c, ok := object.(*corev1.ConfigMap); ok {
		c.ManagedFields = nil // as upstream's own transform
		if c.Name != rootcacertpublisher.RootCACertConfigMapName && c.Name != bootstrapapi.ConfigMapClusterInfo {
			c.Data, c.BinaryData = nil, nil
		}
	}
	return object, nil
}
