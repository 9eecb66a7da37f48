package simulate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// Prefix begins the annotations that tell Pods and Nodes how to behave, and the label of
// the Nodes.
const Prefix = "simulate.karve/"

// The annotations of a Pod. They apply to its containers, but not to its init containers.
// With a dot and a container's name after it, an annotation applies to that container only.
const (
	StartDelay     = Prefix + "start-delay"      // duration of ContainerCreating; only for the whole Pod
	ImagePullError = Prefix + "image-pull-error" // true: the image can't be pulled
	RunFor         = Prefix + "run-for"          // duration after which the container ends, or forever
	ExitCode       = Prefix + "exit-code"        // its exit code
	ExitReason     = Prefix + "exit-reason"      // its reason, such as OOMKilled
	CrashLoop      = Prefix + "crash-loop"       // true: it ends with 1 again and again
	BackOff        = Prefix + "back-off"         // duration of the first back-off, at least leastBackOff; it doubles
	ReadyAfter     = Prefix + "ready-after"      // duration from its start until it is ready
	NotReadyAfter  = Prefix + "not-ready-after"  // duration from its start until it is no longer ready
	CPUUsage       = Prefix + "cpu-usage"        // what it uses, as metrics.k8s.io reports it
	MemoryUsage    = Prefix + "memory-usage"     // the same
	StopAfter      = Prefix + "stop-after"       // duration it takes to end when the Pod is deleted; only for the whole Pod
	Listen         = Prefix + "listen"           // ports at which processes of this machine answer: see listen.go; only for the whole Pod
)

// helmHook marks the Pods that helm creates once and waits for, such as those of helm test.
const helmHook = "helm.sh/hook"

// The annotations of a Node.
const (
	NodeDown     = Prefix + "down"      // true: the node is silent, like a machine without power
	NodeNotReady = Prefix + "not-ready" // true: the node reports that it is not ready
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
	pullError     bool
	runFor        time.Duration // or forever
	exitCode      int32
	exitReason    string // if empty, the exit code decides
	backOff       time.Duration
	readyAfter    time.Duration
	notReadyAfter time.Duration // forever: never
}

// podScript is what a whole Pod does.
type podScript struct {
	startDelay, stopAfter time.Duration
	listen                listenMap
	containers            map[string]script
}

var podOnly = []string{StartDelay, StopAfter, Listen}
var ofContainers = []string{ImagePullError, RunFor, ExitCode, ExitReason, CrashLoop, BackOff, ReadyAfter, NotReadyAfter, CPUUsage, MemoryUsage}

// podNames and nodeNames are all annotations of a Pod and of a Node.
var (
	podNames  = slices.Concat(podOnly, ofContainers)
	nodeNames = []string{NodeDown, NodeNotReady}
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
	return s, r.err
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
		base, container, suffixed := strings.Cut(strings.TrimPrefix(name, Prefix), ".")
		base = Prefix + base
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

// ownNames returns the names of the annotations that are the simulation's, sorted.
func ownNames(annotations map[string]string) (names []string) {
	for name := range annotations {
		if strings.HasPrefix(name, Prefix) {
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
	return slices.ContainsFunc(pod.Spec.Containers, is) || slices.ContainsFunc(pod.Spec.InitContainers, is)
}

// reader reads the annotations of one container after the other, and keeps the first error.
type reader struct {
	annotations map[string]string // the Pod's, with the defaults
	where       func(name string) string
	container   string
	whole       bool // the Pod's annotations apply to this container
	err         error
}

func newReader(pod *corev1.Pod, defaults Defaults) (*reader, error) {
	if err := checkNames(pod); err != nil {
		return nil, err
	}
	annotations, where, err := defaults.with(pod)
	return &reader{annotations: annotations, where: where}, err
}

func (r *reader) script(usual time.Duration) script {
	s := script{
		pullError:     r.truth(ImagePullError),
		exitReason:    r.text(ExitReason),
		backOff:       max(r.duration(BackOff, firstBackOff), leastBackOff),
		readyAfter:    r.duration(ReadyAfter, 0),
		notReadyAfter: r.duration(NotReadyAfter, forever),
	}
	r.quantity(CPUUsage, idleCPU) // checked here; Usage returns it
	r.quantity(MemoryUsage, idleMemory)
	crash := r.truth(CrashLoop)
	if code := r.text(ExitCode); code != "" {
		n, err := strconv.ParseInt(code, 10, 32)
		if err != nil || n < 0 || n > 255 {
			r.fail(ExitCode, code, "a number from 0 to 255")
		}
		s.exitCode = int32(n)
		usual = shortRun
	} else if crash {
		s.exitCode = 1
		usual = shortRun
	}
	if s.runFor = usual; r.text(RunFor) == "forever" {
		s.runFor = forever
	} else {
		s.runFor = r.duration(RunFor, usual)
	}
	return s
}

// text returns the value for this container, or the Pod's.
func (r *reader) text(name string) string {
	if r.container != "" {
		if v, ok := r.annotations[name+"."+r.container]; ok {
			return v
		}
		if !r.whole {
			return ""
		}
	}
	return r.annotations[name]
}

func (r *reader) truth(name string) bool {
	switch v := r.text(name); v {
	case "", "false":
		return false
	case "true":
		return true
	default:
		r.fail(name, v, "true or false")
		return false
	}
}

func (r *reader) duration(name string, usual time.Duration) time.Duration {
	v := r.text(name)
	if v == "" {
		return usual
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 {
		r.fail(name, v, "a duration such as 30s or 500ms")
	}
	return d
}

func (r *reader) quantity(name string, usual resource.Quantity) resource.Quantity {
	v := r.text(name)
	if v == "" {
		return usual
	}
	q, err := resource.ParseQuantity(v)
	if err != nil || q.Sign() < 0 {
		r.fail(name, v, "a quantity such as 250m or 64Mi")
		return usual
	}
	return q
}

func (r *reader) fail(name, value, want string) {
	if r.err == nil {
		r.err = fmt.Errorf("%s: %q is not %s", r.where(name), value, want)
	}
}

// reject is fail with what is wrong with a part of the value.
func (r *reader) reject(name, value string, err error) {
	if r.err == nil {
		r.err = fmt.Errorf("%s: %q: %w", r.where(name), value, err)
	}
}

// What a container without an annotation uses: next to nothing.
var (
	idleCPU    = resource.MustParse("1m")
	idleMemory = resource.MustParse("8Mi")
)

// Usage returns how much CPU and memory a running container of a Pod uses, as its
// annotations and the defaults say. A Pod with annotations that cannot be understood has not started.
func Usage(p *corev1.Pod, container string, defaults Defaults) corev1.ResourceList {
	annotations, where, _ := defaults.with(p)
	r := reader{annotations: annotations, where: where, container: container, whole: true}
	return corev1.ResourceList{
		corev1.ResourceCPU:    r.quantity(CPUUsage, idleCPU),
		corev1.ResourceMemory: r.quantity(MemoryUsage, idleMemory),
	}
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
