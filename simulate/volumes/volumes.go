// Package volumes makes, changes and deletes the volumes of simulated nodes, as external-provisioner,
// external-resizer and a kubelet do together.
package volumes

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	storagehelpers "k8s.io/component-helpers/storage/volume"
)

// Name is the provisioner of StorageClasses with simulated volumes, and the driver of their
// VolumeAttributesClasses. DefaultClass is the class that is made if there is none.
const (
	Name         = "simulate.karve/volumes"
	DefaultClass = "simulated"
	// driver is the CSI driver of the volumes. It attaches nothing.
	driver = "simulate.karve"
)

// Annotations with which the volume controller and a provisioner communicate
// (k8s.io/component-helpers/storage/volume).
const (
	annStorageProvisioner = "volume.kubernetes.io/storage-provisioner"
	annProvisionedBy      = "pv.kubernetes.io/provisioned-by"
	annIsDefaultClass     = "storageclass.kubernetes.io/is-default-class"
)

// Provisioner makes volumes. A caller has a queue of keys, and workers that call Sync.
type Provisioner struct {
	// Core and Storage are clients of an administrator.
	Core, Storage rest.Interface
	// Claims and Volumes have those of the whole cluster.
	Claims, Volumes cache.Store
	// Recorder records what claims are refused.
	Recorder record.EventRecorder

	mu      sync.Mutex
	refused map[types.NamespacedName]string // what claims were last refused
}

// MakeDefaultClass makes the CSI driver, and a StorageClass if the cluster has none.
func (p *Provisioner) MakeDefaultClass(ctx context.Context) error {
	csi := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(bool)}}
	if err := p.Storage.Post().Resource("csidrivers").Body(csi).Do(ctx).Error(); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create CSI driver %s: %w", driver, err)
	}
	classes := &storagev1.StorageClassList{}
	if err := p.Storage.Get().Resource("storageclasses").Do(ctx).Into(classes); err != nil {
		return fmt.Errorf("list storage classes: %w", err)
	}
	if len(classes.Items) > 0 {
		return nil
	}
	class := &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: DefaultClass, Annotations: map[string]string{annIsDefaultClass: "true"}},
		Provisioner: Name,
	}
	err := p.Storage.Post().Resource("storageclasses").Body(class).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create storage class %s: %w", DefaultClass, err)
	}
	return nil
}

// Events returns a handler of the events of claims and volumes, which gives the keys of what there is to do to add. Only claims have
// a namespace.
func (p *Provisioner) Events(add func(types.NamespacedName)) cache.ResourceEventHandler {
	look := func(object any) {
		switch o := object.(type) {
		case *corev1.PersistentVolumeClaim:
			if (o.Spec.VolumeName == "" || changes(o)) && o.Annotations[annStorageProvisioner] == Name && o.DeletionTimestamp == nil {
				add(types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
			}
		case *corev1.PersistentVolume:
			if o.Status.Phase == corev1.VolumeReleased && o.Annotations[annProvisionedBy] == Name && o.DeletionTimestamp == nil {
				add(types.NamespacedName{Name: o.Name})
			}
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, object any) { look(object) }, DeleteFunc: look}
}

// Sync makes or changes the volume of a claim, or deletes a volume whose claim is gone. It returns after which time to call it again; 0 is
// after the next event.
func (p *Provisioner) Sync(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	if key.Namespace == "" {
		object, there, err := p.Volumes.GetByKey(key.Name)
		if err != nil || !there || object.(*corev1.PersistentVolume).Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
			return 0, err
		}
		err = p.Core.Delete().Resource("persistentvolumes").Name(key.Name).Do(ctx).Error()
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("delete volume %s: %w", key.Name, err)
		}
		return 0, nil
	}
	object, there, err := p.Claims.GetByKey(key.String())
	if err != nil || !there {
		p.mu.Lock()
		delete(p.refused, key)
		p.mu.Unlock()
		return 0, err
	}
	claim := object.(*corev1.PersistentVolumeClaim)
	if claim.Spec.VolumeName != "" {
		return p.changeVolume(ctx, claim)
	}
	class := &storagev1.StorageClass{}
	name := storagehelpers.GetPersistentVolumeClaimClass(claim)
	if name == "" { // not the volume controller's annotation, but a user's
		return 0, nil
	}
	if err := p.Storage.Get().Resource("storageclasses").Name(name).Do(ctx).Into(class); err != nil {
		return 0, fmt.Errorf("read the class of claim %s: %w", key, err)
	}
	if class.Provisioner != Name {
		return 0, nil
	}
	switch why, err := p.waitsFor(ctx, claim); {
	case err != nil:
		return 0, err
	case why != "":
		p.refuse(claim, "ProvisioningFailed", fmt.Sprintf("failed to provision volume with StorageClass %q: %s", name, why))
		return volumePoll, nil
	}
	volume := volumeOf(claim, class)
	err = p.Core.Post().Resource("persistentvolumes").Body(volume).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return 0, fmt.Errorf("create the volume of claim %s: %w", key, err)
	}
	return 0, nil
}

// volumeOf returns a volume for a claim, of a kind that needs no attaching.
func volumeOf(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) *corev1.PersistentVolume {
	name := "pvc-" + string(claim.UID)
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{annProvisionedBy: Name}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes: claim.Spec.AccessModes, VolumeMode: claim.Spec.VolumeMode, VolumeAttributesClassName: claim.Spec.VolumeAttributesClassName,
			StorageClassName: class.Name, MountOptions: class.MountOptions,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef: &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name,
				UID: claim.UID, ResourceVersion: claim.ResourceVersion},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name}},
		},
	}
	if class.ReclaimPolicy != nil {
		v.Spec.PersistentVolumeReclaimPolicy = *class.ReclaimPolicy
	}
	return v
}
