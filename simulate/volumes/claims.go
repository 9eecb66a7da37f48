package volumes

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// ExpandAfter is the annotation of a claim that says how long its expansion takes.
const ExpandAfter = "simulate.karve/expand-after"

// volumePoll is how often a claim that waits for something is looked at.
const volumePoll = 2 * time.Second

// changes reports whether a bound claim wants more than its volume has, or another VolumeAttributesClass.
func changes(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Status.Phase == corev1.ClaimBound && (grows(claim) || modifies(claim))
}

func grows(claim *corev1.PersistentVolumeClaim) bool {
	have, there := claim.Status.Capacity[corev1.ResourceStorage]
	return there && have.Cmp(claim.Spec.Resources.Requests[corev1.ResourceStorage]) < 0
}

func modifies(claim *corev1.PersistentVolumeClaim) bool {
	want := ptr.Deref(claim.Spec.VolumeAttributesClassName, "")
	return want != "" && want != ptr.Deref(claim.Status.CurrentVolumeAttributesClassName, "")
}

// waitsFor returns what a claim waits for, or why it gets no volume; nothing: it can get one.
func (p *Provisioner) waitsFor(ctx context.Context, claim *corev1.PersistentVolumeClaim) (why string, err error) {
	if claim.Spec.Selector != nil {
		return "claim Selector is not supported", nil
	}
	if why, err := p.attributesClass(ctx, claim); why != "" || err != nil {
		return why, err
	}
	from := claim.Spec.DataSourceRef
	if from == nil {
		return "", nil
	}
	at := types.NamespacedName{Namespace: ptr.Deref(from.Namespace, claim.Namespace), Name: from.Name}
	switch group := ptr.Deref(from.APIGroup, ""); {
	case group == "" && from.Kind == "PersistentVolumeClaim":
		object, there, err := p.Claims.GetByKey(at.String())
		if err != nil || there && object.(*corev1.PersistentVolumeClaim).Status.Phase == corev1.ClaimBound {
			return "", err
		}
		return fmt.Sprintf("claim in dataSource %s is not bound", at), nil
	case group == "snapshot.storage.k8s.io" && from.Kind == "VolumeSnapshot":
		var snapshot struct{ Status struct{ ReadyToUse bool } }
		body, err := p.Core.Get().AbsPath("/apis/snapshot.storage.k8s.io/v1/namespaces", at.Namespace, "volumesnapshots", at.Name).
			SetHeader("Accept", "application/json").Do(ctx).Raw()
		if err == nil {
			err = json.Unmarshal(body, &snapshot)
		}
		if err != nil && !apierrors.IsNotFound(err) || snapshot.Status.ReadyToUse {
			return "", err
		}
		return fmt.Sprintf("snapshot %s is not ready to use", at), nil
	default:
		return fmt.Sprintf("%s %s needs a volume populator", from.Kind, at), nil
	}
}

// attributesClass returns what is wrong with a claim's VolumeAttributesClass.
func (p *Provisioner) attributesClass(ctx context.Context, claim *corev1.PersistentVolumeClaim) (why string, err error) {
	name := ptr.Deref(claim.Spec.VolumeAttributesClassName, "")
	if name == "" {
		return "", nil
	}
	class := &storagev1.VolumeAttributesClass{}
	switch err := p.Storage.Get().Resource("volumeattributesclasses").Name(name).Do(ctx).Into(class); {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("VolumeAttributesClass %q not found", name), nil
	case err != nil:
		return "", fmt.Errorf("read VolumeAttributesClass %s: %w", name, err)
	case class.DriverName != Name:
		return fmt.Sprintf("VolumeAttributesClass %q is of driver %s, not %s", name, class.DriverName, Name), nil
	}
	return "", nil
}

// refuse records, once, why a claim does not get what it wants.
func (p *Provisioner) refuse(claim *corev1.PersistentVolumeClaim, reason, message string) {
	p.mu.Lock()
	key := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
	told := p.refused[key] == message
	if p.refused == nil {
		p.refused = map[types.NamespacedName]string{}
	}
	p.refused[key] = message
	p.mu.Unlock()
	if !told {
		p.Recorder.Event(claim, corev1.EventTypeWarning, reason, message)
	}
}

// changeVolume changes the volume of a bound claim, one step at a time, as external-resizer and the kubelet do.
func (p *Provisioner) changeVolume(ctx context.Context, claim *corev1.PersistentVolumeClaim) (time.Duration, error) {
	status := claim.Status.DeepCopy()
	takes, err := expandAfter(claim)
	switch {
	case err != nil:
		p.refuse(claim, "VolumeResizeFailed", err.Error())
		return 0, nil
	case modifies(claim):
		why, err := p.attributesClass(ctx, claim)
		if err != nil {
			return 0, err
		}
		if why != "" {
			status.ModifyVolumeStatus = &corev1.ModifyVolumeStatus{TargetVolumeAttributesClassName: *claim.Spec.VolumeAttributesClassName, Status: corev1.PersistentVolumeClaimModifyVolumePending}
			p.refuse(claim, "VolumeModifyFailed", why)
			return volumePoll, p.writeClaim(ctx, claim, status)
		}
		if err := p.patchVolume(ctx, claim, map[string]any{"volumeAttributesClassName": *claim.Spec.VolumeAttributesClassName}); err != nil {
			return 0, err
		}
		status.ModifyVolumeStatus, status.CurrentVolumeAttributesClassName = nil, claim.Spec.VolumeAttributesClassName
	case grows(claim):
		want := claim.Spec.Resources.Requests[corev1.ResourceStorage]
		switch resizing, pending := condition(status, corev1.PersistentVolumeClaimResizing), condition(status, corev1.PersistentVolumeClaimFileSystemResizePending); {
		case pending != nil:
			status.Conditions, status.AllocatedResourceStatuses = slices.DeleteFunc(status.Conditions, isResize), nil
			status.Capacity[corev1.ResourceStorage] = status.AllocatedResources[corev1.ResourceStorage]
		case resizing == nil:
			expansion(status, corev1.PersistentVolumeClaimResizing, "", corev1.PersistentVolumeClaimControllerResizeInProgress)
			status.AllocatedResources = corev1.ResourceList{corev1.ResourceStorage: want}
		default:
			if left := time.Until(resizing.LastTransitionTime.Add(takes)); left > 0 {
				return left, nil
			}
			allocated := status.AllocatedResources[corev1.ResourceStorage]
			if err := p.patchVolume(ctx, claim, map[string]any{"capacity": corev1.ResourceList{corev1.ResourceStorage: allocated}}); err != nil {
				return 0, err
			}
			expansion(status, corev1.PersistentVolumeClaimFileSystemResizePending,
				"Waiting for user to (re-)start a pod to finish file system resize of volume on node.", corev1.PersistentVolumeClaimNodeResizePending)
		}
	default:
		return 0, nil
	}
	return 0, p.writeClaim(ctx, claim, status)
}

// expansion sets how far an expansion is.
func expansion(status *corev1.PersistentVolumeClaimStatus, is corev1.PersistentVolumeClaimConditionType, message string, resource corev1.ClaimResourceStatus) {
	status.Conditions = append(slices.DeleteFunc(status.Conditions, isResize),
		corev1.PersistentVolumeClaimCondition{Type: is, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(), Message: message})
	status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: resource}
}

// isResize reports whether a condition says how far an expansion is. Others have other owners.
func isResize(c corev1.PersistentVolumeClaimCondition) bool {
	return c.Type == corev1.PersistentVolumeClaimResizing || c.Type == corev1.PersistentVolumeClaimFileSystemResizePending
}

func condition(status *corev1.PersistentVolumeClaimStatus, kind corev1.PersistentVolumeClaimConditionType) *corev1.PersistentVolumeClaimCondition {
	if i := slices.IndexFunc(status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool { return c.Type == kind }); i >= 0 {
		return &status.Conditions[i]
	}
	return nil
}

func expandAfter(claim *corev1.PersistentVolumeClaim) (time.Duration, error) {
	value := claim.Annotations[ExpandAfter]
	if value == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("annotation %s: %q is not a duration such as 30s", ExpandAfter, value)
	}
	return d, nil
}

func (p *Provisioner) patchVolume(ctx context.Context, claim *corev1.PersistentVolumeClaim, spec map[string]any) error {
	body, err := json.Marshal(map[string]any{"spec": spec})
	if err == nil {
		err = p.Core.Patch(types.MergePatchType).Resource("persistentvolumes").Name(claim.Spec.VolumeName).Body(body).Do(ctx).Error()
	}
	if err != nil {
		return fmt.Errorf("change volume %s: %w", claim.Spec.VolumeName, err)
	}
	return nil
}

// writeClaim writes a claim's status with the resourceVersion that was read.
func (p *Provisioner) writeClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, status *corev1.PersistentVolumeClaimStatus) error {
	next := &corev1.PersistentVolumeClaim{TypeMeta: claim.TypeMeta, ObjectMeta: claim.ObjectMeta, Spec: claim.Spec, Status: *status}
	err := p.Core.Put().Namespace(claim.Namespace).Resource("persistentvolumeclaims").Name(claim.Name).SubResource("status").Body(next).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write status of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}
