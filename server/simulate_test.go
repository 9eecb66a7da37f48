package server_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/kubelet/status"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/simulate"
)

// TestSimulatedNodes does what users do with Pods, on nodes that do not exist.
func TestSimulatedNodes(t *testing.T) {
	hosts := listenOnHost(t)
	c := start(t, func(config *server.Config) {
		config.SimulateNodes = []string{"5"}
		config.SimulateListen = []string{hosts.tls.Addr().String(), hosts.echo.Addr().String()}
		config.SimulatePods = []string{"memory-usage=11Mi"}
		// With these options, a silent node counts as gone before the test times out. It may
		// be silent for the ten seconds of its lease.
		config.ControllerManagerArgs = []string{"node-monitor-grace-period=20s", "node-monitor-period=1s"}
	})
	// What happens to these nodes must not take those of other tests away.
	for _, i := range []int{goesDown, isDeleted} {
		amend(t, c.CoreV1().Nodes(), simulate.Name(i), types.MergePatchType, `{"spec":{"unschedulable":true}}`)
	}
	t.Run("all", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *cluster){
			"nodes": testSimulatedNodes, "Deployment": testSimulatedDeployment, "Job": testSimulatedJob,
			"volume": testSimulatedVolume, "deletion": testSimulatedDeletion, "crash loop": testSimulatedCrashLoop, "readiness gate": testSimulatedGate,
			"ephemeral container and resize": testSimulatedChanges,
			"logs and proxy":                 testSimulatedKubelet, "defaults": testSimulatedDefaults,
			"exec": testSimulatedExec, "attach": testSimulatedAttach,
			"listen": hosts.testListen, "listen elsewhere": testSimulatedListenElsewhere,
			"end of a Pod": testSimulatedEnd, "content": testSimulatedContent, "faults": testSimulatedFaults, "resize": testSimulatedResize,
			"restart of all containers": testSimulatedRestartAll, "claims": testSimulatedClaims, "wrong annotations": testSimulatedMistakes,
			"a user's node": testSimulatedUsersNode, "a metrics-server": testSimulatedMetricsStay,
			"node down": testSimulatedNodeDown, "node deleted": testSimulatedNodeDeleted,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, c)
			})
		}
	})
}

// The nodes with these numbers run no Pods of other tests.
const goesDown, isDeleted = 3, 4

// simulated returns a Pod with annotations, given as alternating names and values.
func simulated(name string, annotations ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}, Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "web:1"}}, TerminationGracePeriodSeconds: ptr.To[int64](30)},
	}
	for i := 0; i < len(annotations); i += 2 {
		p.Annotations[annotations[i]] = annotations[i+1]
	}
	return p
}

func template(annotations ...string) corev1.PodTemplateSpec {
	p := simulated("", annotations...)
	return corev1.PodTemplateSpec{ObjectMeta: p.ObjectMeta, Spec: p.Spec}
}

var web = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// wantPod waits until a Pod is in the state that ok checks.
func (c *cluster) wantPod(t *testing.T, ns, name, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var p *corev1.Pod
	eventually.Nil(t, "Pod "+name+" "+what, func() (err error) {
		if p, err = c.CoreV1().Pods(ns).Get(t.Context(), name, metav1.GetOptions{}); err == nil && !ok(p) {
			err = fmt.Errorf("status: %+v", p.Status)
		}
		return err
	})
	wantUpstreamsConditions(t, p)
	return p
}

// wantUpstreamsConditions compares the conditions of a Pod with those that the kubelet
// makes of the same containers.
func wantUpstreamsConditions(t *testing.T, p *corev1.Pod) {
	t.Helper()
	if p.Spec.NodeName == "" || p.Status.StartTime == nil {
		return
	}
	all := append(slices.Clone(p.Status.InitContainerStatuses), p.Status.ContainerStatuses...)
	for _, want := range []corev1.PodCondition{
		status.GeneratePodInitializedCondition(p, &p.Status, all, p.Status.Phase),
		status.GenerateContainersReadyCondition(p, &p.Status, all, p.Status.Phase),
		status.GeneratePodReadyCondition(p, &p.Status, p.Status.Conditions, all, p.Status.Phase),
	} {
		i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == want.Type })
		if i < 0 {
			t.Errorf("Pod %s has no condition %s", p.Name, want.Type)
			continue
		}
		got := p.Status.Conditions[i]
		want.LastTransitionTime, want.ObservedGeneration = got.LastTransitionTime, got.ObservedGeneration
		if got != want {
			t.Errorf("condition of Pod %s: got %+v, want the kubelet's %+v", p.Name, got, want)
		}
	}
}

func testSimulatedNodes(t *testing.T, c *cluster) {
	for i := range 3 {
		name := simulate.Name(i)
		eventually.Nil(t, name+" is ready, without taints, and has a lease", func() error {
			n, err := c.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			})
			if !ready || len(n.Spec.Taints) > 0 || n.Spec.PodCIDR == "" || n.Labels[corev1.LabelHostname] != name || n.Status.NodeInfo.KubeletVersion == "" {
				return fmt.Errorf("got %+v", n)
			}
			lease, err := c.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && (lease.OwnerReferences[0].UID != n.UID || time.Since(lease.Spec.RenewTime.Time) > 30*time.Second) {
				err = fmt.Errorf("lease: %+v", lease)
			}
			return err
		})
	}
}

func testSimulatedDeployment(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	deployments := c.AppsV1().Deployments(ns)
	d := create(t, deployments, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To[int32](4), Selector: web, Template: template(),
	}})
	available := func() error {
		now, err := deployments.Get(t.Context(), "web", metav1.GetOptions{})
		if err == nil && (now.Status.ObservedGeneration != now.Generation || now.Status.UpdatedReplicas != 4 || now.Status.Replicas != 4 || now.Status.AvailableReplicas != 4) {
			err = fmt.Errorf("status: %+v", now.Status)
		}
		return err
	}
	eventually.Nil(t, "the Deployment is available", available)
	addresses := map[string]bool{}
	for _, p := range c.wantPods(t, ns, 4) {
		n, err := c.CoreV1().Nodes().Get(t.Context(), p.Spec.NodeName, metav1.GetOptions{})
		fatal(t, err)
		if at, err := netip.ParseAddr(p.Status.PodIP); err != nil || !netip.MustParsePrefix(n.Spec.PodCIDR).Contains(at) || addresses[p.Status.PodIP] {
			t.Errorf("address %q of Pod %s: want one of its own of %s", p.Status.PodIP, p.Name, n.Spec.PodCIDR)
		}
		addresses[p.Status.PodIP] = true
		if p.Status.HostIP != n.Status.Addresses[0].Address || p.Status.StartTime == nil || p.Status.ObservedGeneration != p.Generation {
			t.Errorf("status of Pod %s: %+v", p.Name, p.Status)
		}
		wantUpstreamsConditions(t, &p)
	}
	patch := `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"web:2"}]}}}}`
	amend(t, deployments, d.Name, types.StrategicMergePatchType, patch)
	eventually.Nil(t, "the new image is rolled out", func() error {
		if err := available(); err != nil {
			return err
		}
		for _, p := range c.wantPods(t, ns, 4) {
			if p.Status.ContainerStatuses[0].Image != "web:2" {
				return fmt.Errorf("Pod %s has %s", p.Name, p.Status.ContainerStatuses[0].Image)
			}
		}
		return nil
	})
}

func job(name string, spec batchv1.JobSpec, annotations ...string) *batchv1.Job {
	spec.Template = template(annotations...)
	spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
}

func (c *cluster) wantJob(t *testing.T, ns, name string, kind batchv1.JobConditionType) batchv1.JobStatus {
	t.Helper()
	var status batchv1.JobStatus
	eventually.Nil(t, fmt.Sprintf("Job %s is %s", name, kind), func() error {
		j, err := c.BatchV1().Jobs(ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		status = j.Status
		if !slices.ContainsFunc(status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue }) {
			return fmt.Errorf("status: %+v", status)
		}
		return nil
	})
	return status
}

func testSimulatedJob(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	// A service that may end does not have to.
	p := simulated("service")
	p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	create(t, c.CoreV1().Pods(ns), p)
	create(t, c.BatchV1().Jobs(ns), job("long", batchv1.JobSpec{}, simulate.RunFor, "forever"))
	for _, p := range c.wantPods(t, ns, 2) {
		c.wantPod(t, ns, p.Name, "runs", isReady)
	}
	// These begin later, and the third when another one has ended: by then, the two above would have ended, too.
	create(t, c.BatchV1().Jobs(ns), job("three", batchv1.JobSpec{Completions: ptr.To[int32](3), Parallelism: ptr.To[int32](2)}))
	if got := c.wantJob(t, ns, "three", batchv1.JobComplete); got.Succeeded != 3 || got.Failed != 0 {
		t.Errorf("status: %+v, want 3 succeeded", got)
	}
	for _, p := range c.wantPods(t, ns, 5) {
		want := corev1.PodRunning
		if strings.HasPrefix(p.Name, "three-") {
			want = corev1.PodSucceeded
		}
		if p.Status.Phase != want {
			t.Errorf("Pod %s: got phase %s, want %s", p.Name, p.Status.Phase, want)
		}
		wantUpstreamsConditions(t, &p)
	}
}

// A volume is made for a claim, and deleted with it once no Pod uses it.
func testSimulatedVolume(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	create(t, c.AppsV1().StatefulSets(ns), &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.StatefulSetSpec{
		Replicas: ptr.To[int32](1), Selector: web, Template: template(simulate.ReadyAfter, "1100ms"),
		VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		}}},
	}})
	c.wantPod(t, ns, "db-0", "is ready", isReady)
	claim, err := c.CoreV1().PersistentVolumeClaims(ns).Get(t.Context(), "data-db-0", metav1.GetOptions{})
	if err != nil || claim.Status.Phase != corev1.ClaimBound {
		t.Fatalf("the claim of a Pod: got %+v and %v, want it bound", claim, err)
	}
	fatal(t, c.AppsV1().StatefulSets(ns).Delete(t.Context(), "db", metav1.DeleteOptions{}))
	fatal(t, c.CoreV1().PersistentVolumeClaims(ns).Delete(t.Context(), claim.Name, metav1.DeleteOptions{}))
	gone(t, c.CoreV1().PersistentVolumes(), claim.Spec.VolumeName)
}

func testSimulatedDeletion(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	pods := c.CoreV1().Pods(ns)
	kept := simulated("kept")
	kept.Finalizers = []string{"karve.test/late"}
	create(t, pods, kept)
	create(t, pods, simulated("quick"))
	create(t, pods, simulated("slow", simulate.StopAfter, "1h"))
	uids := map[string]types.UID{}
	for _, name := range []string{"kept", "quick", "slow"} {
		uids[name] = c.wantPod(t, ns, name, "is ready", isReady).UID
	}
	began := time.Now()
	fatal(t, pods.Delete(t.Context(), "slow", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](2)}))
	if p, err := pods.Get(t.Context(), "slow", metav1.GetOptions{}); err != nil || p.DeletionTimestamp == nil || !isReady(p) {
		t.Errorf("slow, while it ends: got %v and %v, want it ready and being deleted", p.Status, err)
	}
	for _, name := range []string{"kept", "quick"} {
		fatal(t, pods.Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	gone(t, pods, "quick")
	gone(t, pods, "slow")
	if took := time.Since(began); took < 1900*time.Millisecond {
		t.Errorf("slow was gone after %v, want its grace period of 2 s", took)
	}
	c.wantPod(t, ns, "kept", "has failed", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodFailed && p.Status.ContainerStatuses[0].State.Terminated != nil
	})
	amend(t, pods, "kept", types.MergePatchType, `{"metadata":{"finalizers":null}}`)
	gone(t, pods, "kept")
}

func testSimulatedCrashLoop(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	create(t, c.CoreV1().Pods(ns), simulated("bad", simulate.CrashLoop, "true", simulate.RunFor, "50ms", simulate.BackOff, "200ms", simulate.ExitReason, "OOMKilled"))
	c.wantPod(t, ns, "bad", "waits to be restarted", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses
		return p.Status.Phase == corev1.PodRunning && len(s) == 1 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "CrashLoopBackOff" &&
			s[0].LastTerminationState.Terminated.ExitCode == 137 && s[0].LastTerminationState.Terminated.Reason == "OOMKilled"
	})
	c.wantPod(t, ns, "bad", "is restarted four times", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount >= 4 })
	// The Pod is repaired while it runs.
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:null,%q:null,%q:null}}}`, simulate.CrashLoop, simulate.RunFor, simulate.ExitReason)
	amend(t, c.CoreV1().Pods(ns), "bad", types.MergePatchType, patch)
	c.wantPod(t, ns, "bad", "is ready", isReady)
}

func testSimulatedGate(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	p := simulated("gated")
	p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "karve.test/open"}}
	create(t, c.CoreV1().Pods(ns), p)
	c.wantPod(t, ns, "gated", "runs", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning && !isReady(p) })
	patch := `{"status":{"conditions":[{"type":"karve.test/open","status":"True"}]}}`
	amend(t, c.CoreV1().Pods(ns), "gated", types.StrategicMergePatchType, patch, "status")
	c.wantPod(t, ns, "gated", "is ready", isReady)
}

func testSimulatedChanges(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	pods := c.CoreV1().Pods(ns)
	create(t, pods, simulated("web"))
	p := c.wantPod(t, ns, "web", "is ready", isReady)
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "busybox"}}}
	if _, err := pods.UpdateEphemeralContainers(t.Context(), "web", p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.wantPod(t, ns, "web", "has its ephemeral container", func(p *corev1.Pod) bool {
		s := p.Status.EphemeralContainerStatuses
		return len(s) == 1 && s[0].Name == "debug" && s[0].State.Running != nil
	})
	patch := `{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"300m"},"limits":{"cpu":"300m"}}}]}}`
	p = simulated("sized")
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	create(t, pods, p)
	c.wantPod(t, ns, "sized", "is ready", isReady)
	amend(t, pods, "sized", types.StrategicMergePatchType, patch, "resize")
	c.wantPod(t, ns, "sized", "has its new size", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses[0]
		return s.Resources != nil && s.Resources.Limits.Cpu().String() == "300m" && s.AllocatedResources.Cpu().String() == "300m" && s.RestartCount == 0
	})
}

func testSimulatedKubelet(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	create(t, c.CoreV1().Pods(ns), simulated("web"))
	c.wantPod(t, ns, "web", "is ready", isReady)
	logs, err := c.CoreV1().Pods(ns).GetLogs("web", &corev1.PodLogOptions{}).DoRaw(t.Context())
	if want := "simulated: container main of Pod " + ns + "/web"; err != nil || !strings.HasPrefix(string(logs), want) {
		t.Errorf("logs: got %q and %v, want %q…", logs, err, want)
	}
	body, err := c.CoreV1().Pods(ns).ProxyGet("http", "web", "80", "/", nil).DoRaw(t.Context())
	if err == nil || !strings.Contains(string(body), "simulated: ") {
		t.Errorf("proxy: got %q and %v, want an error that says simulated", body, err)
	}
}

// annotateNode sets an annotation, or removes it if value is empty.
func (c *cluster) annotateNode(t *testing.T, node, name, value string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, name, value)
	if value == "" {
		patch = fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, name)
	}
	amend(t, c.CoreV1().Nodes(), node, types.MergePatchType, patch)
}

// wantNode waits until a node has this readiness.
func (c *cluster) wantNode(t *testing.T, name string, want corev1.ConditionStatus) {
	t.Helper()
	eventually.Nil(t, fmt.Sprintf("readiness of %s is %s", name, want), func() error {
		n, err := c.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range n.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == want {
				return nil
			}
		}
		return fmt.Errorf("conditions: %+v", n.Status.Conditions)
	})
}

// The test's Pod is bound to its node.
func testSimulatedNodeDown(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	down := simulate.Name(goesDown)
	p := simulated("web")
	p.Spec.NodeName = down
	p.Spec.Tolerations = []corev1.Toleration{
		{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](0)},
		{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](300)},
	}
	create(t, c.CoreV1().Pods(ns), p)
	c.wantPod(t, ns, "web", "is ready", isReady)
	extended := `{"status":{"capacity":{"example.com/gpu":"4"},"allocatable":{"example.com/gpu":"4"}}}`
	amend(t, c.CoreV1().Nodes(), down, types.MergePatchType, extended, "status")
	c.annotateNode(t, down, simulate.NodeNotReady, "true")
	c.wantNode(t, down, corev1.ConditionFalse)
	c.annotateNode(t, down, simulate.NodeNotReady, "")
	c.wantNode(t, down, corev1.ConditionTrue)

	logs := c.CoreV1().Pods(ns).GetLogs("web", &corev1.PodLogOptions{})
	if _, err := logs.DoRaw(t.Context()); err != nil { // this goesDown the API server a connection to the node
		t.Errorf("logs: %v", err)
	}
	c.annotateNode(t, down, simulate.NodeDown, "true")
	eventually.Nil(t, "the node does not answer", func() error {
		if text, err := logs.DoRaw(t.Context()); err == nil || !strings.Contains(string(text), "node "+down+" is down") {
			return fmt.Errorf("got %q and %v", text, err)
		}
		return nil
	})
	c.wantNode(t, down, corev1.ConditionUnknown)
	eventually.Nil(t, "the Pod is evicted, and stays, for nobody ends it", func() error {
		p, err := c.CoreV1().Pods(ns).Get(t.Context(), "web", metav1.GetOptions{})
		if err == nil && (p.DeletionTimestamp == nil || isReady(p)) { // a controller has set it to not ready
			err = fmt.Errorf("got %+v", p)
		}
		return err
	})
	c.annotateNode(t, down, simulate.NodeDown, "")
	c.wantNode(t, down, corev1.ConditionTrue)
	n, err := c.CoreV1().Nodes().Get(t.Context(), down, metav1.GetOptions{})
	if gpus := n.Status.Allocatable["example.com/gpu"]; err != nil || gpus.Value() != 4 {
		t.Errorf("what a user has given the node: got %v and %v, want it to stay", n.Status.Allocatable, err)
	}
	gone(t, c.CoreV1().Pods(ns), "web")
}

func testSimulatedNodeDeleted(t *testing.T, c *cluster) {
	name := simulate.Name(isDeleted)
	before, err := c.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	fatal(t, err)
	fatal(t, c.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}))
	eventually.Nil(t, "the node registers again", func() error {
		now, err := c.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && now.UID == before.UID {
			err = fmt.Errorf("it is still the old one")
		}
		return err
	})
	c.wantNode(t, name, corev1.ConditionTrue)
}

// TestSimulatedNodesRestartWithFewerNodes restarts with fewer nodes than before. Pods have an
// address of each family, from the ranges that the controllers assign to nodes.
func TestSimulatedNodesRestartWithFewerNodes(t *testing.T) {
	dir := t.TempDir()
	nodes := func(n int) func(*server.Config) {
		return func(config *server.Config) {
			config.SimulateNodes = []string{strconv.Itoa(n)}
			config.ServiceClusterIPRange, config.ClusterCIDR = "10.96.0.0/12,fd00:10:96::/112", "10.244.0.0/16,fd00:10:244::/56"
		}
	}
	c := up(t, dir, nodes(3))
	ns := c.namespace(t)
	var pods [3]*corev1.Pod
	for i := range pods {
		p := simulated(fmt.Sprint("on-", i), simulate.RunFor, "forever")
		p.Spec.NodeName = simulate.Name(i)
		create(t, c.CoreV1().Pods(ns), p)
		pods[i] = c.wantPod(t, ns, p.Name, "is ready", isReady)
	}
	before, err := c.CoreV1().Nodes().Get(t.Context(), simulate.Name(0), metav1.GetOptions{})
	fatal(t, err)
	c.down(t)
	c = up(t, dir, nodes(2))
	defer c.down(t)
	found, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{LabelSelector: simulate.NodeLabel})
	if err != nil || len(found.Items) != 2 || found.Items[0].UID != before.UID {
		t.Errorf("nodes: got %v and %v, want the first two of before", found, err)
	}
	after := simulated("after")
	after.Spec.NodeName = simulate.Name(0)
	create(t, c.CoreV1().Pods(ns), after)
	fresh := c.wantPod(t, ns, "after", "is ready", isReady)
	kept := c.wantPod(t, ns, "on-0", "is ready", isReady)
	if kept.Status.PodIP != pods[0].Status.PodIP || fresh.Status.PodIP == kept.Status.PodIP || kept.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("a Pod of before: got %+v, want it as it was: %+v", kept.Status, pods[0].Status)
	}
	for _, ip := range kept.Status.PodIPs {
		at, err := netip.ParseAddr(ip.IP)
		if err != nil || len(kept.Status.PodIPs) != 2 || len(kept.Status.HostIPs) != 2 || !slices.ContainsFunc(before.Spec.PodCIDRs, func(cidr string) bool {
			return netip.MustParsePrefix(cidr).Contains(at) && (strings.HasPrefix(cidr, "10.244.") || strings.HasPrefix(cidr, "fd00:10:244:"))
		}) {
			t.Errorf("addresses: got %v and the node's %v, want one of each of %v", kept.Status.PodIPs, kept.Status.HostIPs, before.Spec.PodCIDRs)
		}
	}
	if kept.ResourceVersion != pods[0].ResourceVersion {
		t.Errorf("a Pod of before was written, though nothing has changed: %+v, was %+v", kept.Status, pods[0].Status)
	}
	fatal(t, c.CoreV1().Pods(ns).Delete(t.Context(), "on-1", metav1.DeleteOptions{}))
	gone(t, c.CoreV1().Pods(ns), "on-1")
}
