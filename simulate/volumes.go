package simulate

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	storagehelpers "k8s.io/component-helpers/storage/volume"
)

// Provisioner is the provisioner of StorageClasses with simulated volumes. DefaultClass is
// the class that is made if there is none.
const (
	Provisioner  = Prefix + "volumes"
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

// makeDefaultClass makes the CSI driver, and a StorageClass if the cluster has none.
func (s *simulation) makeDefaultClass(ctx context.Context) error {
	csi := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(bool)}}
	if err := s.storage.Post().Resource("csidrivers").Body(csi).Do(ctx).Error(); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create CSI driver %s: %w", driver, err)
	}
	classes := &storagev1.StorageClassList{}
	if err := s.storage.Get().Resource("storageclasses").Do(ctx).Into(classes); err != nil {
		return fmt.Errorf("list storage classes: %w", err)
	}
	if len(classes.Items) > 0 {
		return nil
	}
	class := &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: DefaultClass, Annotations: map[string]string{annIsDefaultClass: "true"}},
		Provisioner: Provisioner,
	}
	err := s.storage.Post().Resource("storageclasses").Body(class).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create storage class %s: %w", DefaultClass, err)
	}
	return nil
}

// volumeEvents handles the events of claims and volumes. Only claims have a namespace.
func (s *simulation) volumeEvents() cache.ResourceEventHandler {
	look := func(object any) {
		switch o := object.(type) {
		case *corev1.PersistentVolumeClaim:
			if (o.Spec.VolumeName == "" || changes(o)) && o.Annotations[annStorageProvisioner] == Provisioner && o.DeletionTimestamp == nil {
				s.volumes.Add(types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
			}
		case *corev1.PersistentVolume:
			if o.Status.Phase == corev1.VolumeReleased && o.Annotations[annProvisionedBy] == Provisioner && o.DeletionTimestamp == nil {
				s.volumes.Add(types.NamespacedName{Name: o.Name})
			}
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, object any) { look(object) }, DeleteFunc: look}
}

// syncVolume makes the volume of a claim, or deletes one whose claim is gone.
func (s *simulation) syncVolume(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	if key.Namespace == "" {
		object, there, err := s.VolumeInformer.GetStore().GetByKey(key.Name)
		if err != nil || !there || object.(*corev1.PersistentVolume).Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
			return 0, err
		}
		err = s.core.Delete().Resource("persistentvolumes").Name(key.Name).Do(ctx).Error()
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("delete volume %s: %w", key.Name, err)
		}
		return 0, nil
	}
	object, there, err := s.ClaimInformer.GetStore().GetByKey(key.String())
	if err != nil || !there {
		s.mu.Lock()
		delete(s.refused, key)
		s.mu.Unlock()
		return 0, err
	}
	claim := object.(*corev1.PersistentVolumeClaim)
	if claim.Spec.VolumeName != "" {
		return s.changeVolume(ctx, claim)
	}
	class := &storagev1.StorageClass{}
	name := storagehelpers.GetPersistentVolumeClaimClass(claim)
	if name == "" { // not the volume controller's annotation, but a user's
		return 0, nil
	}
	if err := s.storage.Get().Resource("storageclasses").Name(name).Do(ctx).Into(class); err != nil {
		return 0, fmt.Errorf("read the class of claim %s: %w", key, err)
	}
	if class.Provisioner != Provisioner {
		return 0, nil
	}
	switch why, err := s.waitsFor(ctx, claim); {
	case err != nil:
		return 0, err
	case why != "":
		s.refuse(claim, "ProvisioningFailed", fmt.Sprintf("failed to provision volume with StorageClass %q: %s", name, why))
		return volumePoll, nil
	}
	volume := volumeOf(claim, class)
	err = s.core.Post().Resource("persistentvolumes").Body(volume).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return 0, fmt.Errorf("create the volume of claim %s: %w", key, err)
	}
	return 0, nil
}

// volumeOf returns a volume for a claim, of a kind that needs no attaching.
func volumeOf(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) *corev1.PersistentVolume {
	name := "pvc-" + string(claim.UID)
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{annProvisionedBy: Provisioner}},
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
