package server_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/remotecommand"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/exec"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/simulate"
	"github.com/karve-k8s/karve/simulate/volumes"
)

// wantEvent waits for an Event about an object.
func (c *cluster) wantEvent(t *testing.T, ns, name, reason, message string) {
	t.Helper()
	eventually.Nil(t, "the Event "+reason+" of "+name, func() error {
		all, err := c.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + name + ",reason=" + reason})
		if err == nil && !slices.ContainsFunc(all.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, message) }) {
			err = fmt.Errorf("got %+v, want one with %q", all.Items, message)
		}
		return err
	})
}

// A deleted Pod shows how it ended before it is gone.
func testSimulatedEnd(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	pods := c.CoreV1().Pods(ns)
	for name, want := range map[string]struct {
		code  int32
		phase corev1.PodPhase
		stop  string
		does  string
	}{
		"quick":  {143, corev1.PodFailed, "0s", "forever"},
		"killed": {137, corev1.PodFailed, "1h", "forever"},
		"done":   {0, corev1.PodSucceeded, "0s", "100ms"},
	} {
		p := simulated(name, simulate.StopAfter, want.stop, simulate.RunFor, want.does)
		p.Spec.TerminationGracePeriodSeconds, p.Spec.RestartPolicy = ptr.To[int64](1), corev1.RestartPolicyNever
		create(t, pods, p)
		c.wantPod(t, ns, name, "has begun", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning || p.Status.Phase == want.phase })
		if want.code == 0 {
			c.wantPod(t, ns, name, "has ended", func(p *corev1.Pod) bool { return p.Status.Phase == want.phase })
		}
		watch, err := pods.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil {
			t.Fatal(err)
		}
		if err := pods.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		var last corev1.PodStatus
		for e := range watch.ResultChan() {
			if e.Type == "DELETED" {
				watch.Stop()
				break
			}
			last = e.Object.(*corev1.Pod).Status
		}
		if end := last.ContainerStatuses[0].State.Terminated; last.Phase != want.phase || end == nil || end.ExitCode != want.code {
			t.Errorf("%s: the last status is %+v, want %s with exit code %d", name, last, want.phase, want.code)
		}
	}
	// What another client writes has happened.
	create(t, pods, simulated("evicted"))
	create(t, pods, simulated("crashed", simulate.BackOff, "100ms"))
	for name, change := range map[string]func(*corev1.PodStatus){
		"evicted": func(s *corev1.PodStatus) { s.Phase, s.Reason = corev1.PodFailed, "Evicted" },
		"crashed": func(s *corev1.PodStatus) {
			s.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 9, Reason: "Error"}}
		},
	} {
		c.wantPod(t, ns, name, "is ready", isReady)
		eventually.Nil(t, "the status is written", func() error {
			p, err := pods.Get(t.Context(), name, metav1.GetOptions{})
			if err == nil {
				change(&p.Status)
				_, err = pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
			}
			return err
		})
	}
	c.wantPod(t, ns, "evicted", "runs no container", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].State.Running == nil })
	c.wantPod(t, ns, "crashed", "has restarted", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses[0]
		return s.State.Running != nil && s.RestartCount == 1 && s.LastTerminationState.Terminated.ExitCode == 9
	})
}

// Logs and answers to commands come from ConfigMaps.
func testSimulatedContent(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	create(t, c.CoreV1().ConfigMaps(ns), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "said"}, Data: map[string]string{
		"log": "first\nsecond\n", "answers": "- {command: 'psql .*', stdout: \"1 row\\n\"}\n- {command: sh, stderr: oh, exitCode: 3}\n"}})
	create(t, c.CoreV1().Pods(ns), simulated("db", simulate.Logs, "configmap/said/log", simulate.Exec, "configmap/said/answers", simulate.Events, "true"))
	create(t, c.CoreV1().Pods(ns), simulated("wrong", simulate.Logs, "configmap/said"))
	create(t, c.CoreV1().Pods(ns), simulated("nopull", simulate.ImagePullError, "true"))
	c.wantPod(t, ns, "db", "is ready", isReady)
	c.wantPod(t, ns, "wrong", "is ready", isReady)
	c.wantPod(t, ns, "nopull", "waits", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Waiting.Reason == "ImagePullBackOff"
	})
	for _, logs := range []struct {
		pod     string
		options corev1.PodLogOptions
		want    string
	}{
		{"db", corev1.PodLogOptions{}, "first\nsecond\n"},
		{"db", corev1.PodLogOptions{TailLines: ptr.To[int64](1)}, "second\n"},
		{"db", corev1.PodLogOptions{LimitBytes: ptr.To[int64](4)}, "firs"},
		{"db", corev1.PodLogOptions{Previous: true}, `previous terminated container "main" in pod "db" not found`},
		{"wrong", corev1.PodLogOptions{}, "configmap said has the keys answers, log"},
		{"nopull", corev1.PodLogOptions{}, `container "main" in pod "nopull" is waiting to start: trying and failing to pull image`},
	} {
		text, err := c.CoreV1().Pods(ns).GetLogs(logs.pod, &logs.options).DoRaw(t.Context())
		if got := strings.ReplaceAll(string(text), `\"`, `"`) + fmt.Sprint(err); !strings.HasPrefix(got, logs.want) && !strings.Contains(got, logs.want) {
			t.Errorf("logs of %s, %+v: got %q, want %q", logs.pod, logs.options, got, logs.want)
		}
	}
	for _, command := range []struct {
		words               []string
		stdout, stderr, err string
	}{
		{[]string{"psql", "-c", "select 1"}, "1 row\n", "", "<nil>"},
		{[]string{"sh"}, "", "oh", "command terminated with exit code 3"},
		{[]string{"ls"}, "", "simulated: configmap said has no line for \"ls\"\n", "command terminated with exit code 126"},
	} {
		for protocol, executor := range c.executors(t, c.at(ns, "db", "exec", &corev1.PodExecOptions{Command: command.words, Stdout: true, Stderr: true})) {
			var out, stderr strings.Builder
			err := executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out, Stderr: &stderr})
			if code := (exec.CodeExitError{}); errors.As(err, &code) && !strings.Contains(err.Error(), "exit code") {
				err = fmt.Errorf("command terminated with exit code %d", code.Code)
			}
			if out.String() != command.stdout || stderr.String() != command.stderr || !strings.Contains(fmt.Sprint(err), command.err) {
				t.Errorf("%s, %q: got %q, %q and %v, want %+v", protocol, command.words, out.String(), stderr.String(), err, command)
			}
		}
	}
	c.wantEvent(t, ns, "db", "Started", "")
	c.wantEvent(t, ns, "nopull", "Failed", "ImagePullBackOff")
}

// Faults look as a kubelet shows them.
func testSimulatedFaults(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	create(t, c.BatchV1().Jobs(ns), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "flaky"}, Spec: batchv1.JobSpec{
		BackoffLimitPerIndex: ptr.To[int32](3), CompletionMode: ptr.To(batchv1.IndexedCompletion), Completions: ptr.To[int32](1),
		Template: func() corev1.PodTemplateSpec {
			p := template(simulate.Fails, "1", simulate.RunFor, "50ms", simulate.TerminationMsg, "bye")
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			return p
		}(),
	}})
	create(t, c.CoreV1().Pods(ns), simulated("nomount", simulate.MountError, "disk is gone"))
	create(t, c.CoreV1().Pods(ns), simulated("noconfig", simulate.StartError, "CreateContainerConfigError"))
	create(t, c.CoreV1().Pods(ns), simulated("sick", simulate.UnhealthyAfter, "100ms", simulate.Events, "true"))
	c.wantEvent(t, ns, "nomount", "FailedMount", "disk is gone")
	c.wantEvent(t, ns, "sick", "Unhealthy", "Liveness probe failed")
	c.wantEvent(t, ns, "sick", "Killing", "failed liveness probe, will be restarted")
	c.wantPod(t, ns, "noconfig", "waits", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses
		return len(s) == 1 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "CreateContainerConfigError"
	})
	eventually.Nil(t, "the Job fails once and completes", func() error {
		job, err := c.BatchV1().Jobs(ns).Get(t.Context(), "flaky", metav1.GetOptions{})
		if err == nil && (job.Status.Succeeded != 1 || job.Status.Failed != 1) {
			err = fmt.Errorf("status: %+v", job.Status)
		}
		return err
	})
	pods, err := c.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "job-name=flaky"})
	if err != nil || len(pods.Items) == 0 || pods.Items[0].Status.ContainerStatuses[0].State.Terminated.Message != "bye" {
		t.Errorf("a Pod of the Job: got %+v and %v, want its termination message", pods, err)
	}
}

// resized asks for other resources of a Pod's container.
func (c *cluster) resized(t *testing.T, ns, name, resources string) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"containers":[{"name":"main","resources":%s}]}}`, resources)
	if _, err := c.CoreV1().Pods(ns).Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "resize"); err != nil {
		t.Fatal(err)
	}
}

// A resize waits for room, and restarts a container whose policy asks for it.
func testSimulatedResize(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	requests := func(cpu string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("1Gi")}}
	}
	fill, small := simulated("fill"), simulated("small")
	fill.Spec.NodeName, small.Spec.NodeName = simulate.Name(0), simulate.Name(0)
	fill.Spec.Containers[0].Resources, small.Spec.Containers[0].Resources = requests("20"), requests("1")
	small.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
	for _, p := range []*corev1.Pod{fill, small} {
		create(t, c.CoreV1().Pods(ns), p)
		c.wantPod(t, ns, p.Name, "is ready", isReady)
	}
	c.resized(t, ns, "small", `{"requests":{"memory":"2Gi"}}`)
	c.wantPod(t, ns, "small", "has restarted with more memory", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses[0]
		return s.RestartCount == 1 && s.Resources.Requests.Memory().String() == "2Gi" && p.Status.Resources.Requests.Memory().String() == "2Gi"
	})
	c.resized(t, ns, "small", `{"requests":{"cpu":"25"}}`)
	pending := func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodResizePending && c.Reason == corev1.PodReasonDeferred && strings.Contains(c.Message, "cpu")
		})
	}
	c.wantPod(t, ns, "small", "waits for room", func(p *corev1.Pod) bool {
		return pending(p) && p.Status.ContainerStatuses[0].AllocatedResources.Cpu().String() == "1"
	})
	c.wantEvent(t, ns, "small", "ResizeDeferred", "cpu")
	if err := c.CoreV1().Pods(ns).Delete(t.Context(), "fill", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.wantPod(t, ns, "small", "has it", func(p *corev1.Pod) bool {
		return !pending(p) && p.Status.ContainerStatuses[0].Resources.Requests.Cpu().String() == "25"
	})
}

// The end of one container restarts all.
func testSimulatedRestartAll(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	p := simulated("all", simulate.ExitCode+".main", "42", simulate.RunFor+".main", "300ms", simulate.RunFor+".other", "forever")
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	p.Spec.InitContainers = []corev1.Container{{Name: "first", Image: "first:1"}}
	p.Spec.Containers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyNever)
	p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}}}}
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "other", Image: "other:1"})
	create(t, c.CoreV1().Pods(ns), p)
	eventually.Nil(t, "all containers have restarted", func() error {
		p, err := c.CoreV1().Pods(ns).Get(t.Context(), "all", metav1.GetOptions{})
		if err != nil {
			return err
		}
		all := append(slices.Clone(p.Status.InitContainerStatuses), p.Status.ContainerStatuses...)
		if len(all) != 3 || slices.ContainsFunc(all, func(s corev1.ContainerStatus) bool { return s.RestartCount == 0 }) {
			return fmt.Errorf("status: %+v", p.Status)
		}
		return nil
	})
}

// Claims grow, change their class, and are refused as a provisioner refuses them.
func testSimulatedClaims(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	create(t, c.StorageV1().VolumeAttributesClasses(), &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "gold-" + ns}, DriverName: volumes.Name, Parameters: map[string]string{"iops": "1"}})
	create(t, c.StorageV1().StorageClasses(), &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "grow-" + ns}, Provisioner: volumes.Name, AllowVolumeExpansion: ptr.To(true)})
	claims := c.CoreV1().PersistentVolumeClaims(ns)
	claim := func(name string, change func(*corev1.PersistentVolumeClaim)) {
		p := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To("grow-" + ns), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
		change(p)
		create(t, claims, p)
	}
	want := func(name, what string, ok func(*corev1.PersistentVolumeClaim) bool) {
		t.Helper()
		eventually.Nil(t, name+" "+what, func() error {
			p, err := claims.Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && !ok(p) {
				err = fmt.Errorf("%+v", p)
			}
			return err
		})
	}
	isBound := func(p *corev1.PersistentVolumeClaim) bool { return p.Status.Phase == corev1.ClaimBound }
	claim("selects", func(p *corev1.PersistentVolumeClaim) { p.Spec.Selector = web })
	claim("copy", func(p *corev1.PersistentVolumeClaim) {
		p.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "data"}
	})
	c.wantEvent(t, ns, "selects", "ProvisioningFailed", "claim Selector is not supported")
	c.wantEvent(t, ns, "copy", "ProvisioningFailed", "is not bound")
	claim("data", func(p *corev1.PersistentVolumeClaim) { p.Annotations = map[string]string{volumes.ExpandAfter: "1s"} })
	want("data", "is bound", isBound)
	want("copy", "is bound", isBound)
	for _, patch := range []string{`{"spec":{"volumeAttributesClassName":"gold-` + ns + `"}}`, `{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`} {
		if _, err := claims.Patch(t.Context(), "data", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	resizes := func(p *corev1.PersistentVolumeClaim) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
			return c.Type == corev1.PersistentVolumeClaimResizing || c.Type == corev1.PersistentVolumeClaimFileSystemResizePending
		})
	}
	want("data", "is being resized", resizes)
	want("data", "has grown and changed", func(p *corev1.PersistentVolumeClaim) bool {
		return p.Status.Capacity.Storage().String() == "2Gi" && !resizes(p) && ptr.Deref(p.Status.CurrentVolumeAttributesClassName, "") == "gold-"+ns
	})
}

// A mistake in an annotation is shown, and stops nothing that runs.
func testSimulatedMistakes(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	p := simulated("deadline")
	p.Spec.ActiveDeadlineSeconds = ptr.To[int64](4)
	create(t, c.CoreV1().Pods(ns), p)
	c.wantPod(t, ns, "deadline", "is ready", isReady)
	annotate := func(value string) {
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"simulate.karve/redy-after":%s}}}`, value)
		if _, err := c.CoreV1().Namespaces().Patch(t.Context(), ns, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	annotate(`"5s"`)
	mistaken := func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == simulate.AnnotationsUnderstood && strings.Contains(c.Message, "redy-after")
		})
	}
	c.wantPod(t, ns, "deadline", "shows the mistake", mistaken)
	c.wantEvent(t, ns, "deadline", "SimulationError", "redy-after")
	c.wantPod(t, ns, "deadline", "ends", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	create(t, c.CoreV1().Pods(ns), simulated("new"))
	c.wantPod(t, ns, "new", "waits", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses
		return len(s) == 1 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "SimulationError"
	})
	annotate("null")
	c.wantPod(t, ns, "new", "is ready", func(p *corev1.Pod) bool { return isReady(p) && !mistaken(p) })
}

// A Node of a user with the simulation's label is simulated, evicts under pressure, and stays gone when the user deletes it.
func testSimulatedUsersNode(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	name := "own-" + ns
	// The taint keeps Pods of other tests away, whose node would go.
	create(t, c.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{simulate.NodeLabel: "", "kind": name}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "own", Effect: corev1.TaintEffectNoSchedule}}}})
	for pod, used := range map[string]string{"more": "2Gi", "less": "1Mi"} {
		p := simulated(pod, simulate.MemoryUsage, used)
		p.Spec.NodeSelector, p.Spec.Tolerations = map[string]string{"kind": name}, []corev1.Toleration{{Key: "own", Operator: corev1.TolerationOpExists}}
		create(t, c.CoreV1().Pods(ns), p)
		c.wantPod(t, ns, pod, "is ready", isReady)
	}
	if _, err := c.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+simulate.NodePressure+`":"memory"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.wantPod(t, ns, "more", "is evicted", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodFailed && p.Status.Reason == "Evicted" && p.Status.ContainerStatuses[0].State.Running == nil
	})
	if err := c.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // a node of the server would register again soon after
	if _, err := c.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}); wantNotFound(err) != nil {
		t.Errorf("the deleted Node: got %v, want it to be gone", err)
	}
}

// A chart's metrics-server does not take the metrics away, nor does its removal.
func testSimulatedMetricsStay(t *testing.T, c *cluster) {
	client, err := aggregator.NewForConfig(c.admin)
	if err != nil {
		t.Fatal(err)
	}
	services := client.ApiregistrationV1().APIServices()
	const name = "v1beta1.metrics.k8s.io"
	stays := func(what string, not types.UID) {
		t.Helper()
		eventually.Nil(t, what+", the APIService is the server's", func() error {
			o, err := services.Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && (o.Spec.Service != nil || o.UID == not) {
				err = fmt.Errorf("got %+v", o)
			}
			return err
		})
		eventually.Nil(t, what+", discovery has the nodes' metrics", func() error {
			_, all, err := c.Discovery().ServerGroupsAndResources() // which the deletion of a namespace asks, too
			if err == nil && !slices.ContainsFunc(all, func(l *metav1.APIResourceList) bool {
				return l.GroupVersion == "metrics.k8s.io/v1beta1" && len(l.APIResources) > 0
			}) {
				err = errors.New("it has none")
			}
			return err
		})
	}
	service := `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"labels":{"k8s-app":"metrics-server"}},"spec":{"insecureSkipTLSVerify":true,"service":{"name":"metrics-server","namespace":"kube-system"}}}`
	amend(t, services, name, types.MergePatchType, service)
	stays("applied", "")
	o, err := services.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := services.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	stays("deleted", o.UID)
}

// A start without simulated nodes says that some are left, and leaves no API behind that nobody serves.
func TestNodesOfAnEarlierStart(t *testing.T) {
	dir := t.TempDir()
	once(t, dir, func(config *server.Config) { config.SimulateNodes = []string{"2"} }, func(*cluster) {})
	once(t, dir, nil, func(c *cluster) {
		eventually.Nil(t, "a notice", func() error {
			got, err := control.New(dir).Notices(t.Context())
			if err == nil && (len(got) != 1 || !strings.HasPrefix(got[0], "2 simulated nodes of an earlier start")) {
				err = fmt.Errorf("got %q", got)
			}
			return err
		})
		eventually.Nil(t, "no metrics.k8s.io", func() error {
			groups, err := c.Discovery().ServerGroups()
			if err == nil && slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == "metrics.k8s.io" }) {
				err = errors.New("it is in the discovery")
			}
			return err
		})
	})
}

// A Node with the name of a simulated one is taken over, unless a kubelet reports for it. If no simulated node is left, the server is not
// ready, and says why.
func TestSimulatedNamesOfOtherNodes(t *testing.T) {
	dir := t.TempDir()
	once(t, dir, nil, func(c *cluster) {
		create(t, c.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "simulated-0"},
			Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{ContainerRuntimeVersion: "containerd://2.0"}}})
		create(t, c.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "simulated-1"}})
	})
	const kubelet = "node simulated-0 exists and is not simulated: a kubelet of containerd://2.0 reports for it"
	once(t, dir, func(config *server.Config) { config.SimulateNodes = []string{"2,zone=a,cpu=4"} }, func(c *cluster) {
		eventually.Nil(t, "simulated-1 is a whole node", func() error {
			n, err := c.CoreV1().Nodes().Get(t.Context(), "simulated-1", metav1.GetOptions{})
			if err == nil && (!simulate.IsNode(n) || n.Labels[corev1.LabelTopologyZone] != "a" || n.Status.Capacity.Cpu().String() != "4" || n.Spec.PodCIDR == "" || n.Labels[corev1.LabelHostname] == "") {
				err = fmt.Errorf("got %+v", n)
			}
			return err
		})
		if all, err := control.New(dir).Notices(t.Context()); err != nil || len(all) != 1 || !strings.Contains(all[0], kubelet) {
			t.Errorf("notices: got %q and %v, want %s", all, err, kubelet)
		}
	})
	c, ready := startBlocked(t, dir, func(config *server.Config) { config.SimulateNodes = []string{"1"} })
	eventually.Nil(t, "the reason is told", func() error {
		if _, err := c.readyz(t, "simulated-nodes"); err == nil || !strings.Contains(c.log.String(), kubelet) {
			return fmt.Errorf("got %v; log:\n%s", err, c.log)
		}
		return nil
	})
	fatal(t, c.CoreV1().Nodes().Delete(t.Context(), "simulated-0", metav1.DeleteOptions{}))
	<-ready
	c.down(t)
}
