package simulate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// PodsOption is the option of the server with defaults for all Pods.
const PodsOption = "simulate-pods"

// Defaults are what Pods do whose annotations do not say it.
type Defaults struct {
	// Pods are the server's defaults for all Pods: annotations with their full names.
	Pods map[string]string
	// Namespaces are the Namespace objects. Their annotations are defaults for the Pods in them, and
	// take precedence over Pods. Nil: there are none.
	Namespaces cache.Store
	// Targets are what the annotation [Listen] may name.
	Targets Targets
}

// ParseDefaults reads the server's defaults, each as NAME=VALUE without [Prefix].
func ParseDefaults(list []string, targets Targets) (map[string]string, error) {
	all := map[string]string{}
	for _, item := range list {
		name, value, ok := strings.Cut(item, "=")
		if !ok {
			return nil, fmt.Errorf("--%s %s: want NAME=VALUE, such as ready-after=2s", PodsOption, item)
		}
		if !isForAll(Prefix + name) {
			return nil, unknownName(fmt.Sprintf("--%s %s", PodsOption, item), "", podNames)
		}
		if _, twice := all[Prefix+name]; twice {
			return nil, fmt.Errorf("--%s %s: there are two values for %s, want one", PodsOption, item, name)
		}
		all[Prefix+name] = value
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "any"}}}}
	if _, err := readScript(pod, Defaults{Pods: all, Targets: targets}); err != nil {
		return nil, err
	}
	return all, nil
}

// isForAll reports whether a default can have this name.
func isForAll(name string) bool {
	return slices.Contains(podNames, name)
}

// of returns the annotations of a Pod's Namespace.
func (d Defaults) of(pod *corev1.Pod) map[string]string {
	if d.Namespaces == nil {
		return nil
	}
	object, there, err := d.Namespaces.GetByKey(pod.Namespace)
	if err != nil || !there {
		return nil
	}
	return object.(metav1.Object).GetAnnotations()
}

// with returns a Pod's annotations with the defaults for those that it does not have, and a function that
// says where an annotation comes from. An empty annotation of the Pod is one that it has.
func (d Defaults) with(pod *corev1.Pod) (all map[string]string, where func(name string) string, err error) {
	namespaces := d.of(pod)
	names := ownNames(namespaces)
	where = func(name string) string {
		_, ofPod := pod.Annotations[name]
		_, ofNamespace := namespaces[name]
		switch _, ofServer := d.Pods[name]; {
		case ofNamespace && !ofPod:
			return fmt.Sprintf("annotation %s of namespace %s", name, pod.Namespace)
		case ofServer && !ofPod:
			return fmt.Sprintf("--%s %s", PodsOption, strings.TrimPrefix(name, Prefix))
		default:
			return "annotation " + name
		}
	}
	for _, name := range names {
		if !isForAll(name) {
			return pod.Annotations, where, unknownName(fmt.Sprintf("annotation %s of namespace %s", name, pod.Namespace), Prefix, podNames)
		}
	}
	if len(names) == 0 && len(d.Pods) == 0 {
		return pod.Annotations, where, nil
	}
	all = maps.Clone(d.Pods)
	if all == nil {
		all = map[string]string{}
	}
	for _, name := range names {
		all[name] = namespaces[name]
	}
	maps.Copy(all, pod.Annotations)
	return all, where, nil
}

// namespaceEvents handles the events of Namespaces. A Pod waits until its Namespace is known, and new defaults
// apply to the Pods that are there.
func (s *simulation) namespaceEvents() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(object any, initially bool) {
			if !initially { // then every Pod is looked at afterwards
				s.lookAtPodsIn(object.(*corev1.Namespace).Name)
			}
		},
		UpdateFunc: func(old, object any) {
			was, is := old.(*corev1.Namespace), object.(*corev1.Namespace)
			if !sameOwn(was.Annotations, is.Annotations) {
				s.lookAtPodsIn(is.Name)
			}
		},
	}
}

// lookAtPodsIn queues all Pods of a namespace.
func (s *simulation) lookAtPodsIn(namespace string) {
	s.lookAtPods(func(p *corev1.Pod) bool { return p.Namespace == namespace && s.nodes.get(p.Spec.NodeName) != nil })
}

// known reports whether the informer has a Namespace. It may be behind the one that has the Pods in it.
func (d Defaults) known(namespace string) bool {
	if d.Namespaces == nil {
		return true
	}
	_, there, err := d.Namespaces.GetByKey(namespace)
	return there || err != nil
}
