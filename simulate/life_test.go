package simulate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// began is not at a full second, because no Pod begins at one.
var began = time.Date(2026, 11, 21, 12, 0, 0, 700e6, time.UTC)

func newPod(policy corev1.RestartPolicy, annotations ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "test", UID: "uid", Generation: 1, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{RestartPolicy: policy, NodeName: "simulated-0", Containers: []corev1.Container{{Name: "main", Image: "web"}}}}
	for i := 0; i < len(annotations); i += 2 {
		p.Annotations[annotations[i]] = annotations[i+1]
	}
	return p
}

// play runs a Pod's life until nothing more happens, or for the given time. It returns what
// was visible, and when. With forgetful, it keeps only the object between two looks, as if
// the server had restarted.
func play(t *testing.T, p *corev1.Pod, most time.Duration, forgetful bool) (seen []string) {
	t.Helper()
	times := map[string]time.Time{}
	for now := began; now.Sub(began) <= most; {
		if forgetful {
			times = map[string]time.Time{}
		}
		l := &life{pod: p, now: now, times: times, hosts: []corev1.HostIP{{IP: "198.18.0.1"}}, addrs: []corev1.PodIP{{IP: "100.64.0.2"}}, failed: func() int32 { return 0 }}
		l.script, l.wrong = readScript(p, Defaults{})
		status := l.advance()
		if !equality.Semantic.DeepEqual(status, p.Status) {
			seen = append(seen, fmt.Sprintf("%v %s", now.Sub(began).Round(100*time.Millisecond), summary(&status)))
		}
		p.Status = status
		again := &life{pod: p, now: now, times: times, hosts: l.hosts, addrs: l.addrs, script: l.script, wrong: l.wrong, failed: l.failed}
		if second := again.advance(); !equality.Semantic.DeepEqual(second, status) {
			t.Fatalf("a second look at the same time: got %s, want nothing new after %s", summary(&second), summary(&status))
		}
		if l.again == 0 {
			return seen
		}
		now = now.Add(l.again)
	}
	return seen
}

// summary returns the phase, the state of each container, and whether it is ready.
func summary(s *corev1.PodStatus) string {
	parts := []string{string(s.Phase)}
	for _, c := range append(slices.Clone(s.InitContainerStatuses), s.ContainerStatuses...) {
		switch {
		case c.State.Running != nil:
			parts = append(parts, fmt.Sprintf("%s=running/%d", c.Name, c.RestartCount))
		case c.State.Terminated != nil:
			parts = append(parts, fmt.Sprintf("%s=%s", c.Name, c.State.Terminated.Reason))
		default:
			parts = append(parts, fmt.Sprintf("%s=%s", c.Name, c.State.Waiting.Reason))
		}
	}
	if slices.ContainsFunc(s.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}) {
		parts = append(parts, "ready")
	}
	return strings.Join(parts, " ")
}

func TestLife(t *testing.T) {
	always, never, onFailure := corev1.RestartPolicyAlways, corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure
	sidecar := corev1.ContainerRestartPolicyAlways
	withInit := func(p *corev1.Pod, containers ...corev1.Container) *corev1.Pod {
		p.Spec.InitContainers = containers
		return p
	}
	ofKind := func(p *corev1.Pod, kind, version string) *corev1.Pod {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: "owner", Controller: &yes}}
		return p
	}
	ofAJob := func(p *corev1.Pod) *corev1.Pod { return ofKind(p, "Job", "batch/v1") }
	until := func(p *corev1.Pod, seconds int64) *corev1.Pod {
		p.Spec.ActiveDeadlineSeconds = &seconds
		return p
	}
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		want []string
	}{
		{"plain", newPod(always), []string{"0s Running main=running/0 ready"}},
		{"may end and does not", newPod(onFailure), []string{"0s Running main=running/0 ready"}},
		{"nobody's, without restarts", newPod(never), []string{"0s Running main=running/0 ready", "1s Succeeded main=Completed"}},
		{"nobody's, and fails", newPod(never, ExitCode, "2", RunFor, "3s"), []string{"0s Running main=running/0 ready", "3s Failed main=Error"}},
		{"of another controller", ofKind(newPod(never), "Workflow", "example.com/v1"), []string{"0s Running main=running/0 ready"}},
		{"of a helm hook", newPod(onFailure, helmHook, "test"), []string{"0s Running main=running/0 ready", "1s Succeeded main=Completed"}},
		{"of a helm hook, and restarts", newPod(always, helmHook, "test"), []string{"0s Running main=running/0 ready"}},
		{"of a Job", ofAJob(newPod(never)), []string{"0s Running main=running/0 ready", "1s Succeeded main=Completed"}},
		{"of a Job, longer", ofAJob(newPod(onFailure, RunFor, "2500ms")), []string{"0s Running main=running/0 ready", "2.5s Succeeded main=Completed"}},
		{"start delay", newPod(always, StartDelay, "5s"), []string{"0s Pending main=ContainerCreating", "5s Running main=running/0 ready"}},
		{"ready for a while", newPod(always, ReadyAfter, "1s", NotReadyAfter, "3s"),
			[]string{"0s Running main=running/0", "1s Running main=running/0 ready", "3s Running main=running/0"}},
		{"is out of memory", newPod(never, ExitReason, "OOMKilled"), []string{"0s Running main=running/0 ready", "1s Failed main=OOMKilled"}},
		{"fails its liveness probe", newPod(always, UnhealthyAfter, "5s", BackOff, "1h"), []string{"0s Running main=running/0 ready", "5s Running main=running/1 ready"}},
		{"fails", newPod(never, ExitCode, "3", ExitReason, "OOMKilled"), []string{"0s Running main=running/0 ready", "1s Failed main=OOMKilled"}},
		{"crash loop", newPod(onFailure, CrashLoop, "true", BackOff, "1s"), []string{"0s Running main=running/0 ready", "1s Running main=running/1 ready",
			"2s Running main=CrashLoopBackOff", "3s Running main=running/2 ready", "4s Running main=CrashLoopBackOff", "6s Running main=running/3 ready",
			"7s Running main=CrashLoopBackOff"}},
		{"succeeds again and again", newPod(always, RunFor, "4s"), []string{"0s Running main=running/0 ready", "4s Running main=running/1 ready", "8s Running main=CrashLoopBackOff"}},
		{"no image", newPod(always, ImagePullError, "true"), []string{"0s Pending main=ErrImagePull", "1s Pending main=ImagePullBackOff"}},
		{"init containers", withInit(newPod(always, RunFor+".two", "1s"), corev1.Container{Name: "one"}, corev1.Container{Name: "two"}), []string{
			"0s Pending one=Completed two=running/0 main=PodInitializing", "1s Running one=Completed two=Completed main=running/0 ready"}},
		{"init container fails", withInit(newPod(never, ExitCode+".one", "1"), corev1.Container{Name: "one"}, corev1.Container{Name: "two"}), []string{
			"0s Pending one=running/0 two=PodInitializing main=PodInitializing", "1s Failed one=Error two=PodInitializing main=PodInitializing"}},
		{"init container is tried again", withInit(newPod(onFailure, ExitCode+".one", "1", BackOff+".one", "7s"), corev1.Container{Name: "one"}), []string{
			"0s Pending one=running/0 main=PodInitializing", "1s Pending one=running/1 main=PodInitializing", "2s Pending one=CrashLoopBackOff main=PodInitializing"}},
		{"sidecar", withInit(newPod(never, RunFor, "2s"), corev1.Container{Name: "proxy", RestartPolicy: &sidecar}, corev1.Container{Name: "one"}), []string{
			"0s Running proxy=running/0 one=Completed main=running/0 ready", "2s Succeeded proxy=Completed one=Completed main=Completed"}},
		{"deadline", until(newPod(always), 2), []string{"0s Running main=running/0 ready", "2s Failed main=Error"}},
		{"misspelt", newPod(always, Prefix+"runfor", "1s"), []string{"0s Pending main=SimulationError"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, forgetful := range []bool{false, true} {
				got := play(t, c.pod.DeepCopy(), 8*time.Second, forgetful)
				want := c.want
				if forgetful { // the order is the same, the times are approximate
					got, want = untimed(got), untimed(want)
				}
				// With slightly shorter times, what happens after the end of the play is
				// not compared.
				if len(got) < len(want) || !slices.Equal(got[:len(want)], want) || !forgetful && len(got) != len(want) {
					t.Errorf("forgetful %v: got\n\t%s\nwant\n\t%s", forgetful, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
				}
			}
		})
	}
}

func untimed(seen []string) (all []string) {
	for _, s := range seen {
		_, rest, _ := strings.Cut(s, " ")
		all = append(all, rest)
	}
	return all
}

func TestBackOffIsTheKubelets(t *testing.T) {
	want := []time.Duration{0, 10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 5 * time.Minute, 5 * time.Minute}
	for restarts, w := range want {
		if got := backOff(script{backOff: firstBackOff}, int32(restarts)); got != w {
			t.Errorf("after %d restarts: got %v, want %v", restarts, got, w)
		}
	}
}

func TestWhoRunsForLongStartsAtOnce(t *testing.T) {
	got := play(t, newPod(corev1.RestartPolicyAlways, RunFor, "11m"), 40*time.Minute, false)
	want := []string{"0s Running main=running/0 ready", "11m0s Running main=running/1 ready", "22m0s Running main=running/2 ready", "33m0s Running main=running/3 ready"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWrongAnnotations(t *testing.T) {
	for annotation, want := range map[[2]string]string{
		{RunFor, "soon"}:                     `annotation simulate.karve/run-for: "soon" is not a duration`,
		{RunFor, "-1s"}:                      "is not a duration",
		{ExitCode, "256"}:                    "a number from 0 to 255",
		{CrashLoop, "yes"}:                   "true or false",
		{StartDelay + ".main", "1s"}:         "want simulate.karve/start-delay, which applies to the whole Pod",
		{Prefix + "crashloop", "true"}:       "unknown name",
		{ImagePullError + ".other", "true"}:  `the Pod has no container "other"`,
		{ImagePullError + ".main", "truely"}: "true or false",
	} {
		if _, err := readScript(newPod(corev1.RestartPolicyAlways, annotation[0], annotation[1]), Defaults{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", annotation, err, want)
		}
	}
	if _, err := readScript(newPod(corev1.RestartPolicyAlways, CrashLoop, "false", RunFor, "forever", ExitCode+".main", "0", "other.example/run-for", "x"), Defaults{}); err != nil {
		t.Error(err)
	}
}

// A container with a new image ends like one of a deleted Pod, and begins like a new one.
func TestANewImage(t *testing.T) {
	for name, c := range map[string]struct {
		annotations []string
		want        []string
		code        int32
	}{
		"at once":     {nil, []string{"0s Running main=running/1 ready"}, exitTerminated},
		"with time":   {[]string{StopAfter, "5s"}, []string{"5s Running main=running/1 ready"}, exitTerminated},
		"killed":      {[]string{StopAfter, "1h"}, []string{"30s Running main=running/1 ready"}, exitKilled},
		"no image":    {[]string{ImagePullError, "true"}, []string{"0s Running main=ErrImagePull", "1s Running main=ImagePullBackOff"}, exitTerminated},
		"wrong start": {[]string{StartError, "CreateContainerError"}, []string{"0s Running main=CreateContainerError"}, exitTerminated},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPod(corev1.RestartPolicyAlways)
			p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30)
			play(t, p, time.Minute, false)
			p.Spec.Containers[0].Image = "web:2"
			for i := 0; i < len(c.annotations); i += 2 {
				p.Annotations[c.annotations[i]] = c.annotations[i+1]
			}
			seen := play(t, p, time.Minute, false)
			if last := p.Status.ContainerStatuses[0].LastTerminationState.Terminated; !slices.Equal(seen, c.want) || last == nil || last.ExitCode != c.code {
				t.Errorf("got %q and %+v, want %q with exit code %d", seen, last, c.want, c.code)
			}
		})
	}
}

// A Pod at its deadline has its grace period, and one that cannot begin has none.
func TestDeadlines(t *testing.T) {
	for annotation, want := range map[string]string{
		StopAfter:  "10s Failed main=Error",
		MountError: "3s Failed main=ContainerStatusUnknown",
	} {
		p := newPod(corev1.RestartPolicyNever, annotation, "7s", RunFor, "forever")
		p.Spec.ActiveDeadlineSeconds, p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](3), ptr.To[int64](30)
		seen := play(t, p, time.Minute, false)
		if last := seen[len(seen)-1]; last != want {
			t.Errorf("%s: got %q, want %q", annotation, last, want)
		}
	}
}

// Chance is the same again with the same seed, and another with another.
func TestChanceComesFromTheSeed(t *testing.T) {
	outcomes := func(seed string) (all []string) {
		for i := range 200 {
			p := newPod(corev1.RestartPolicyNever, Seed, seed, Fails, "25%", RunFor, "10s..20s")
			p.Name = fmt.Sprintf("web-%d", i)
			seen := play(t, p, time.Minute, i%2 == 0)
			all = append(all, fmt.Sprint(seen[len(seen)-1]))
		}
		return all
	}
	first, other := outcomes("1"), outcomes("2")
	failed := 0
	for _, o := range first {
		if strings.Contains(o, "main=Error") {
			failed++
		}
	}
	if again := outcomes("1"); !slices.Equal(first, again) || slices.Equal(first, other) || failed < 20 || failed > 80 {
		t.Errorf("got %d of 200 failed, and the same again: %v, and with another seed: %v", failed, slices.Equal(first, again), slices.Equal(first, other))
	}
	tasks := func(pod string) string {
		p := newPod(corev1.RestartPolicyNever, RunFor, "1s..1h", batchv1.JobCompletionIndexAnnotation, "3")
		p.Name, p.OwnerReferences = pod, []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "all", Controller: ptr.To(true)}}
		s, err := readScript(p, Defaults{})
		if err != nil {
			t.Fatal(err)
		}
		return s.containers["main"].runFor.String()
	}
	if one, two := tasks("all-3-abcde"), tasks("all-3-fghij"); one != two {
		t.Errorf("Pods of one index run for %s and %s", one, two)
	}
}
