package controllers

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
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

// ownInformers are the types for which the controllers have informers of their own if
// garbage collection, which watches every type, is on.
var ownInformers = []runtime.Object{
	//lint:ignore SA1019 the controllers have an informer of Endpoints, as long as upstream has that API
	&corev1.ConfigMap{}, &corev1.Endpoints{}, &corev1.Namespace{}, &corev1.PodTemplate{}, &corev1.ReplicationController{}, &corev1.ResourceQuota{},
	&appsv1.ControllerRevision{}, &appsv1.DaemonSet{}, &appsv1.Deployment{}, &appsv1.ReplicaSet{}, &appsv1.StatefulSet{},
	&autoscalingv2.HorizontalPodAutoscaler{}, &batchv1.CronJob{}, &batchv1.Job{},
	&certificatesv1.CertificateSigningRequest{}, &coordinationv1.Lease{},
	&networkingv1.Ingress{}, &networkingv1.NetworkPolicy{}, &policyv1.PodDisruptionBudget{},
	&resourcev1.ResourceClaim{}, &resourcev1.ResourceClaimTemplate{}, &resourcev1.ResourceSlice{},
	&storagev1.CSINode{}, &storagev1.CSIStorageCapacity{}, &storagev1.VolumeAttributesClass{},
}
