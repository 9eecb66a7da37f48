package simulate

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// reader reads the annotations of one container after the other, and keeps the first error.
type reader struct {
	annotations map[string]string // the Pod's, with the defaults
	where       func(name string) string
	container   string
	whole       bool // the Pod's annotations apply to this container
	pod         *corev1.Pod
	err         error
}

func newReader(pod *corev1.Pod, defaults Defaults) (*reader, error) {
	if err := checkNames(pod); err != nil {
		return nil, err
	}
	annotations, where, err := defaults.with(pod)
	return &reader{annotations: annotations, where: where, pod: pod}, err
}

// lasting returns what a Pod is called in each run of the same test, as far as its controller gives it no random name.
func lasting(pod *corev1.Pod) string {
	owner := metav1.GetControllerOf(pod)
	switch index := pod.Annotations[batchv1.JobCompletionIndexAnnotation]; {
	case owner == nil:
		return pod.Name
	case index != "":
		return owner.Name + "/" + index
	case owner.Kind == "DaemonSet":
		return owner.Name + "/" + pod.Spec.NodeName
	default:
		return pod.Name
	}
}

// draw returns a number below n, the same for the same seed, Pod, container and purpose.
func (r *reader) draw(n uint64, purpose string) uint64 {
	drawn, _ := strconv.ParseUint(strings.TrimPrefix(hash(r.annotations[Seed], r.pod.Namespace, lasting(r.pod), r.container, purpose), "sha256:")[:16], 16, 64)
	return drawn % n
}

// isReason fits the API's reasons, and nothing.
var isReason = regexp.MustCompile(`^([A-Z][A-Za-z0-9]*)?$`)

func (r *reader) script(usual time.Duration) script {
	s := script{
		pullError:     r.truth(ImagePullError),
		startError:    r.text(StartError),
		exitReason:    r.text(ExitReason),
		message:       r.text(TerminationMsg),
		logs:          r.content(Logs),
		exec:          r.content(Exec),
		backOff:       max(r.duration(BackOff, firstBackOff), leastBackOff),
		readyAfter:    r.duration(ReadyAfter, 0),
		notReadyAfter: r.duration(NotReadyAfter, forever), unhealthyAfter: r.duration(UnhealthyAfter, forever),
	}
	if !isReason.MatchString(s.startError) {
		r.fail(StartError, s.startError, "a kubelet's reason such as CreateContainerConfigError")
	}
	r.quantity(CPUUsage, idleCPU) // checked here; Usage returns it
	r.quantity(MemoryUsage, idleMemory)
	r.quantity(CPULoad, idleCPU)
	r.quantity(MemoryLoad, idleMemory)
	s.usual = usual
	s.fails, s.chance = r.failures()
	if s.chance > 0 {
		at := *r // for this container
		s.draw = func(n uint64, attempt int32) uint64 { return at.draw(n, fmt.Sprint(Fails, attempt)) }
	}
	crash := r.truth(CrashLoop)
	switch s.exitCode = int32(r.number(ExitCode, 0, 255)); {
	case r.text(ExitCode) != "":
		usual = shortRun
	case s.exitReason == "OOMKilled":
		s.exitCode, usual = exitKilled, shortRun
	case s.fails > 0, s.chance > 0, crash, s.exitReason != "" && s.exitReason != reasonCompleted:
		s.exitCode, usual = 1, shortRun
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
	if v, ok := r.own(name); ok || r.container != "" && !r.whole {
		return v
	}
	return r.annotations[name]
}

// own returns the value for this container only.
func (r *reader) own(name string) (value string, there bool) {
	if r.container != "" {
		for _, form := range []string{name + "." + r.container, r.container + "." + name} {
			if v, ok := r.annotations[form]; ok {
				return v, true
			}
		}
	}
	return "", false
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

func (r *reader) number(name string, from, to int64) int64 {
	v := r.text(name)
	if v == "" {
		return 0
	}
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil || n < from || n > to {
		r.fail(name, v, fmt.Sprintf("a number from %d to %d", from, to))
		return 0
	}
	return n
}

// failures returns the value of Fails: a number, or a percentage.
func (r *reader) failures() (times int32, chance uint64) {
	percent, ok := strings.CutSuffix(r.text(Fails), "%")
	if !ok {
		return int32(r.number(Fails, 0, 1<<30)), 0
	}
	chance, err := strconv.ParseUint(percent, 10, 64)
	if err != nil || chance > 100 {
		r.fail(Fails, percent+"%", "a percentage from 0% to 100%")
	}
	return 0, chance
}

func (r *reader) duration(name string, usual time.Duration) time.Duration {
	v := r.text(name)
	if v == "" {
		return usual
	}
	least, most, isRange := strings.Cut(v, "..")
	d, err := time.ParseDuration(least)
	to := d
	if isRange && err == nil {
		to, err = time.ParseDuration(most)
	}
	if err != nil || d < 0 || to < d {
		r.fail(name, v, "a duration such as 30s or 500ms, or a range such as 1s..5s")
		return usual
	}
	if to > d {
		d += time.Duration(r.draw(uint64(to-d), name))
	}
	return d
}

func (r *reader) content(name string) contentRef {
	v := r.text(name)
	if v == "" {
		return contentRef{}
	}
	ref, err := parseContentRef(v)
	if err != nil {
		r.reject(name, v, err)
	}
	return ref
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
