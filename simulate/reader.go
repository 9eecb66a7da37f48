package simulate

import (
	"fmt"
	"regexp"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

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
		notReadyAfter: r.duration(NotReadyAfter, forever),
	}
	if !isReason.MatchString(s.startError) {
		r.fail(StartError, s.startError, "a kubelet's reason such as CreateContainerConfigError")
	}
	r.quantity(CPUUsage, idleCPU) // checked here; Usage returns it
	r.quantity(MemoryUsage, idleMemory)
	r.quantity(CPULoad, idleCPU)
	r.quantity(MemoryLoad, idleMemory)
	s.fails, s.usual = int32(r.number(Fails, 0, 1<<30)), usual
	crash := r.truth(CrashLoop)
	if s.exitCode = int32(r.number(ExitCode, 0, 255)); r.text(ExitCode) != "" {
		usual = shortRun
	} else if s.fails > 0 {
		s.exitCode, usual = 1, shortRun
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
		for _, form := range []string{name + "." + r.container, r.container + "." + name} {
			if v, ok := r.annotations[form]; ok {
				return v
			}
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
