package scheduler

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The scheduler uses informers of the API server and the controllers for these types.
//
// Pods are not shared, because the scheduler watches only those that have not ended.
// Resource claims and slices are not shared, because two of the parts add an index of the
// same name.
var (
	sharedWithAPIServer = []runtime.Object{
		&corev1.Node{}, &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}, &corev1.Service{},
		&resourcev1.DeviceClass{}, &storagev1.CSIDriver{}, &storagev1.StorageClass{}, &storagev1.VolumeAttachment{},
	}
	// sharedWithControllers are shared if there are controllers.
	sharedWithControllers = []runtime.Object{
		&corev1.Namespace{}, &corev1.ReplicationController{}, &appsv1.ReplicaSet{}, &appsv1.StatefulSet{},
		&policyv1.PodDisruptionBudget{}, &storagev1.CSINode{}, &storagev1.CSIStorageCapacity{},
	}
)
