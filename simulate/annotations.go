package simulate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// Prefix begins the annotations that tell Pods and Nodes how to behave, and the label of
// the Nodes.
const Prefix = "simulate.karve/"

// The annotations of a Pod. They apply to its containers, but not to its init containers.
// With a dot and a container's name after it, or the name and a dot before it, an annotation applies to that container only.
// A long name fits only before it.
const (
	StartDelay     = Prefix + "start-delay"         // duration of ContainerCreating; only for the whole Pod
	ImagePullError = Prefix + "image-pull-error"    // true: the image can't be pulled
	StartError     = Prefix + "start-error"         // a kubelet's reason, such as CreateContainerConfigError, for which it cannot start
	RunFor         = Prefix + "run-for"             // duration after which the container ends, or forever
	ExitCode       = Prefix + "exit-code"           // its exit code
	ExitReason     = Prefix + "exit-reason"         // its reason, such as OOMKilled
	Fails          = Prefix + "fails"               // how often it fails before it succeeds, where failed Pods of the same controller (and index) count; or how often in a hundred times
	Seed           = Prefix + "seed"                // what chance depends on: of ranges of durations, and of Fails; only for the whole Pod
	CrashLoop      = Prefix + "crash-loop"          // true: it ends with 1 again and again
	BackOff        = Prefix + "back-off"            // duration of the first back-off, at least leastBackOff; it doubles
	ReadyAfter     = Prefix + "ready-after"         // duration from its start until it is ready
	NotReadyAfter  = Prefix + "not-ready-after"     // duration from its start until it is no longer ready
	UnhealthyAfter = Prefix + "unhealthy-after"     // duration from its start until its liveness probe fails, and it is restarted
	TerminationMsg = Prefix + "termination-message" // what it writes to its terminationMessagePath
	Logs           = Prefix + "logs"                // configmap/NAME[/KEY]: what kubectl logs shows
	Exec           = Prefix + "exec"                // configmap/NAME[/KEY]: what commands answer, see answer
	CPUUsage       = Prefix + "cpu-usage"           // what it uses, as metrics.k8s.io reports it
	CPULoad        = Prefix + "cpu-load"            // what all Pods of a controller use together
	MemoryLoad     = Prefix + "memory-load"         // the same
	MemoryUsage    = Prefix + "memory-usage"        // the same
	StopAfter      = Prefix + "stop-after"          // duration it takes to end when the Pod is deleted; only for the whole Pod
	MountError     = Prefix + "mount-error"         // why its volumes cannot be attached or mounted; only for the whole Pod
	Events         = Prefix + "events"              // true: also the kubelet's normal events; only for the whole Pod
	Listen         = Prefix + "listen"              // ports at which processes of this machine answer: see listen.go; only for the whole Pod
)

// helmHook marks the Pods that helm creates once and waits for, such as those of helm test.
const helmHook = "helm.sh/hook"

// The annotations of a Node.
const (
	NodeDown     = Prefix + "down"      // true: the node is silent, like a machine without power
	NodeNotReady = Prefix + "not-ready" // true: the node reports that it is not ready
	NodePressure = Prefix + "pressure"  // memory, disk or pid: the node reports that, and evicts a Pod every ten seconds
)

// NodeLabel is on every simulated Node.
const NodeLabel = Prefix + "node"

const (
	forever = time.Duration(-1)

	// jobLength is how long a container runs whose end somebody waits for. shortRun is for one with an
	// annotation that says how it ends and none that says when: long enough to be seen
	// running.
	jobLength = time.Second
	shortRun  = time.Second

	// The kubelet's back-off (MaxContainerBackOff and backOffPeriod in pkg/kubelet).
	firstBackOff = 10 * time.Second
	mostBackOff  = 5 * time.Minute

	// leastBackOff keeps a container from restarting, and from being written, all the time.
	leastBackOff = 100 * time.Millisecond
)

// script is what one container does.
type script struct {
	pullError  bool
	startError string
	fails      int32  // so often, before it does what it usually does
	chance     uint64 // so often in a hundred times instead
	draw       func(n uint64, attempt int32) uint64
	usual      time.Duration // how long it runs then
	runFor     time.Duration // or forever
	exitCode   int32
	exitReason string // if empty, the exit code decides
	message    string
	logs, exec contentRef
	backOff    time.Duration
	readyAfter time.Duration
	// forever: never
	notReadyAfter, unhealthyAfter time.Duration
}

// podScript is what a whole Pod does.
type podScript struct {
	startDelay, stopAfter time.Duration
	events                bool
	mountError            string
	listen                listenMap
	containers            map[string]script
}

var podOnly = []string{StartDelay, StopAfter, MountError, Events, Seed, Listen}
var ofContainers = []string{ImagePullError, StartError, RunFor, ExitCode, ExitReason, Fails, CrashLoop, BackOff, ReadyAfter, NotReadyAfter, UnhealthyAfter, TerminationMsg, Logs, Exec, CPUUsage, MemoryUsage, CPULoad, MemoryLoad}

// podNames and nodeNames are all annotations of a Pod and of a Node.
var (
	podNames  = slices.Concat(podOnly, ofContainers)
	nodeNames = []string{NodeDown, NodeNotReady, NodePressure}
)

// readScript reads a Pod's annotations, and the defaults for what these leave open. The error names
// the first wrong one, in the order of their names.
func readScript(pod *corev1.Pod, defaults Defaults) (podScript, error) {
	s := podScript{containers: map[string]script{}}
	r, err := newReader(pod, defaults)
	if err != nil {
		return s, err
	}
	s.startDelay = r.duration(StartDelay, 0)
	s.stopAfter = r.duration(StopAfter, 0)
	s.events = r.truth(Events)
	s.mountError = r.text(MountError)
	s.listen = r.listen(defaults.Targets)
	usual := forever
	if completes(pod) {
		usual = jobLength
	}
	for i := range pod.Spec.Containers {
		name := pod.Spec.Containers[i].Name
		r.container, r.whole = name, true
		s.containers[name] = r.script(usual)
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		r.container, r.whole = c.Name, false
		usual := time.Duration(0)
		if podutil.IsRestartableInitContainer(c) {
			usual = forever
		}
		s.containers[c.Name] = r.script(usual)
	}
	for i := range pod.Spec.EphemeralContainers {
		r.container, r.whole = pod.Spec.EphemeralContainers[i].Name, false
		s.containers[r.container] = r.script(forever)
	}
	return s, r.err
}

// runningOn returns what a Pod does whose annotations cannot be understood, and never could be since the start: its containers run.
func runningOn(pod *corev1.Pod) podScript {
	s, _ := readScript(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace}, Spec: pod.Spec}, Defaults{})
	for name, of := range s.containers {
		of.runFor = forever
		s.containers[name] = of
	}
	return s
}

// completes reports whether somebody waits for the end of the Pod: a Job, helm, or whoever created it
// without a controller and wants no restart (kubectl run --restart=Never). A restart policy alone says
// that a Pod may end, not that it will.
func completes(pod *corev1.Pod) bool {
	policy, owner := pod.Spec.RestartPolicy, metav1.GetControllerOf(pod)
	_, hook := pod.Annotations[helmHook]
	switch {
	case policy == corev1.RestartPolicyAlways || policy == "":
		return false
	case hook:
		return true
	case owner == nil:
		return policy == corev1.RestartPolicyNever
	default:
		return owner.Kind == "Job" && strings.HasPrefix(owner.APIVersion, "batch/")
	}
}

// checkNames finds misspelt annotations of a Pod, which would have no effect.
func checkNames(pod *corev1.Pod) error {
	for _, name := range ownNames(pod.Annotations) {
		base, container, suffixed := ofContainer(name)
		switch {
		case slices.Contains(podOnly, base):
			if suffixed {
				return fmt.Errorf("annotation %s: want %s, which applies to the whole Pod", name, base)
			}
		case !slices.Contains(ofContainers, base):
			return unknownName("annotation "+name, Prefix, podNames)
		case suffixed && !hasContainer(pod, container):
			return fmt.Errorf("annotation %s: the Pod has no container %q", name, container)
		}
	}
	return nil
}

// ofContainer returns the annotation that a name means, without the container whose it is. It is empty for names that are not the
// simulation's.
func ofContainer(name string) (base, container string, there bool) {
	domain, rest, _ := strings.Cut(name, "/")
	own := strings.TrimSuffix(Prefix, "/")
	if domain == own {
		base, container, there = strings.Cut(rest, ".")
		return Prefix + base, container, there
	}
	if container, there = strings.CutSuffix(domain, "."+own); there {
		return Prefix + rest, container, true
	}
	return "", "", false
}

// ownNames returns the names of the annotations that are the simulation's, sorted.
func ownNames(annotations map[string]string) (names []string) {
	for name := range annotations {
		if base, _, _ := ofContainer(name); base != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// sameOwn reports whether two objects have the same of those annotations.
func sameOwn(a, b map[string]string) bool {
	names := ownNames(a)
	same := len(names) == len(ownNames(b))
	for _, name := range names {
		value, there := b[name]
		same = same && there && value == a[name]
	}
	return same
}

func unknownName(what, prefix string, known []string) error {
	var all []string
	for _, name := range known {
		all = append(all, prefix+strings.TrimPrefix(name, Prefix))
	}
	return fmt.Errorf("%s: unknown name, want one of %s", what, strings.Join(all, ", "))
}

func hasContainer(pod *corev1.Pod, name string) bool {
	is := func(c corev1.Container) bool { return c.Name == name }
	return slices.ContainsFunc(pod.Spec.Containers, is) || slices.ContainsFunc(pod.Spec.InitContainers, is) ||
		slices.ContainsFunc(pod.Spec.EphemeralContainers, func(e corev1.EphemeralContainer) bool { return e.Name == name })
}

// IsNode reports whether a Node is simulated.
func IsNode(n *corev1.Node) bool {
	_, there := n.Labels[NodeLabel]
	return there
}

// IsDown reports whether a Node is silent.
func IsDown(n *corev1.Node) bool { return isTrue(n.Annotations, NodeDown) }

// checkNode returns what is wrong with a Node's annotations: the first one, in the order of their names. It has
// no effect.
func checkNode(annotations map[string]string) error {
	for _, name := range ownNames(annotations) {
		value := annotations[name]
		if !slices.Contains(nodeNames, name) {
			return unknownName("annotation "+name, Prefix, nodeNames)
		}
		if name == NodePressure {
			if _, ok := pressures[value]; !ok && value != "" {
				return fmt.Errorf("annotation %s: %q is not memory, disk or pid", name, value)
			}
			continue
		}
		if _, err := strconv.ParseBool(value); err != nil && value != "" {
			return fmt.Errorf("annotation %s: %q is not true or false", name, value)
		}
	}
	return nil
}

// isTrue reports whether a Node's annotation is set.
func isTrue(annotations map[string]string, name string) bool {
	v, err := strconv.ParseBool(annotations[name])
	return err == nil && v
}
