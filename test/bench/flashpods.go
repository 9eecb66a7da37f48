package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// What a kubelet does with a Pod that crashes again and again, by default: it starts the container
// again after a back-off that doubles from firstBackOff to crashEvery. Meanwhile it looks at the Pod
// after its resync interval, with jitter, and reports a BackOff Event.
const (
	firstBackOff = 10 * time.Second
	crashEvery   = 5 * time.Minute
	resyncEvery  = time.Minute
	resyncJitter = 0.5
	containerRun = time.Second // how long a container of the benchmark runs
)

// flashPods is the part of the kubelets that has to do with Pods. Events go through client-go's
// recorder, which counts repeated ones and limits them as it does in a kubelet.
type flashPods struct {
	client    kubernetes.Interface
	recorders []record.EventRecorder // one for each node
}

const flashNamespace = metav1.NamespaceDefault

// newFlashPods makes the recorders of the nodes. They end with ctx.
func newFlashPods(ctx context.Context, c *cluster, nodes int) (*flashPods, error) {
	client, err := kubernetes.NewForConfig(c.config())
	if err != nil {
		return nil, err
	}
	p := &flashPods{client: client}
	for n := range nodes {
		events := record.NewBroadcaster(record.WithContext(ctx))
		events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
		p.recorders = append(p.recorders, events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: nodeName(n)}))
	}
	return p, nil
}

// create creates the Pods of a node, which run, and returns the last one.
func (p *flashPods) create(ctx context.Context, n, pods int) (last *corev1.Pod, err error) {
	for i := range pods {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-pod-%d", nodeName(n), i)}, Spec: p.spec()}
		pod.Spec.NodeName = nodeName(n)
		// The namespace's ServiceAccount may not exist yet.
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, startTimeout, true, func(ctx context.Context) (bool, error) {
			last, err = p.client.CoreV1().Pods(flashNamespace).Create(ctx, pod, metav1.CreateOptions{})
			return err == nil, nil
		})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("create Pod %s: %w", pod.Name, err), ctx.Err())
		}
		if err := p.report(ctx, last, corev1.PodRunning, running(), 0); err != nil {
			return nil, err
		}
	}
	return last, nil
}

func (p *flashPods) spec() corev1.PodSpec {
	no := false
	return corev1.PodSpec{AutomountServiceAccountToken: &no, Containers: []corev1.Container{{Name: "main", Image: "registry.example/image-1:v1"}}}
}

func running() corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
}

func terminated(code int32, reason string) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: code, Reason: reason, StartedAt: metav1.Now(), FinishedAt: metav1.Now(),
		ContainerID: fmt.Sprintf("containerd://%064d", 1),
	}}
}

func waiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

// report patches the status of a Pod with one container, as a kubelet does.
func (p *flashPods) report(ctx context.Context, pod *corev1.Pod, phase corev1.PodPhase, state corev1.ContainerState, restarts int32) error {
	ready := corev1.ConditionFalse
	if state.Running != nil {
		ready = corev1.ConditionTrue
	}
	began := metav1.NewTime(pod.CreationTimestamp.Time)
	condition := func(name corev1.PodConditionType, status corev1.ConditionStatus) corev1.PodCondition {
		return corev1.PodCondition{Type: name, Status: status, LastTransitionTime: metav1.Now(), ObservedGeneration: 1}
	}
	status := corev1.PodStatus{
		Phase: phase, HostIP: "10.0.0.1", HostIPs: []corev1.HostIP{{IP: "10.0.0.1"}},
		PodIP: "10.244.0.9", PodIPs: []corev1.PodIP{{IP: "10.244.0.9"}}, StartTime: &began, QOSClass: corev1.PodQOSBestEffort,
		Conditions: []corev1.PodCondition{
			condition(corev1.PodReadyToStartContainers, corev1.ConditionTrue), condition(corev1.PodInitialized, corev1.ConditionTrue),
			condition(corev1.PodReady, ready), condition(corev1.ContainersReady, ready), condition(corev1.PodScheduled, corev1.ConditionTrue),
		},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", Image: "registry.example/image-1:v1", ImageID: fmt.Sprintf("registry.example/image-1@sha256:%064d", 1),
			ContainerID: fmt.Sprintf("containerd://%064d", restarts), State: state, RestartCount: restarts, Ready: state.Running != nil,
		}},
	}
	if restarts > 0 {
		status.ContainerStatuses[0].LastTerminationState = terminated(1, "Error")
	}
	body, err := json.Marshal(map[string]any{"status": status})
	if err == nil {
		_, err = p.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	}
	if err != nil {
		return fmt.Errorf("status of Pod %s: %w", pod.Name, err)
	}
	return nil
}

// starts reports the Events of the start of a container.
func starts(events record.EventRecorder, pod *corev1.Pod) {
	events.Event(pod, corev1.EventTypeNormal, "Pulled", `Container image "registry.example/image-1:v1" already present on machine and can be accessed by the pod`)
	events.Event(pod, corev1.EventTypeNormal, "Created", "Container created")
	events.Event(pod, corev1.EventTypeNormal, "Started", "Container started")
}

// crash plays the kubelet of a node with a Pod that crashes.
func (p *flashPods) crash(ctx context.Context, n int, pod *corev1.Pod) error {
	// The crashes of different nodes do not come at the same moment.
	if pause(ctx, firstBackOff*time.Duration(n)/time.Duration(len(p.recorders))) != nil {
		return nil
	}
	backOff := firstBackOff
	events := p.recorders[n]
	for restarts := int32(1); ; restarts++ {
		next := time.Now().Add(backOff)
		starts(events, pod)
		if err := p.report(ctx, pod, corev1.PodRunning, running(), restarts); err != nil {
			return ignoreEnd(ctx, err)
		}
		if pause(ctx, containerRun) != nil {
			return nil
		}
		message := fmt.Sprintf("back-off %v restarting failed container=main pod=%s_%s(%s)", backOff, pod.Name, pod.Namespace, pod.UID)
		if err := p.report(ctx, pod, corev1.PodRunning, waiting("CrashLoopBackOff", message), restarts); err != nil {
			return ignoreEnd(ctx, err)
		}
		for time.Now().Before(next) {
			events.Event(pod, corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container main in pod "+pod.Name+"_"+pod.Namespace+"("+string(pod.UID)+")")
			if pause(ctx, min(wait.Jitter(resyncEvery, resyncJitter), time.Until(next)+time.Millisecond)) != nil {
				return nil
			}
		}
		backOff = min(2*backOff, crashEvery)
	}
}

// ignoreEnd returns nil once ctx has ended.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
