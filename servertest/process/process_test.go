package process_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/karve-k8s/karve/servertest/process"
)

// A Deployment gets its Pods, so the controllers run. Nothing runs the Pods, because there
// is no node.
func Example() {
	var t *testing.T // the test's
	cluster := process.Start(t)
	namespace := cluster.Namespace(t)
	labels := map[string]string{"app": "web"}
	two := int32(2)
	_, err := cluster.Client().AppsV1().Deployments(namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &two,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods, err := cluster.Client().CoreV1().Pods(namespace).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer pods.Stop()
	for range 2 {
		fmt.Println((<-pods.ResultChan()).Type == watch.Added)
	}
}

func TestMain(m *testing.M) {
	if os.Getenv("TEST_STARTS_A_CLUSTER") != "" {
		childTest()
	}
	os.Exit(m.Run())
}

func TestPodsOfADeployment(t *testing.T) {
	cluster := process.Start(t)
	if namespace := cluster.Namespace(t); !strings.HasPrefix(namespace, "testpodsofadeployment-") {
		t.Errorf("namespace %q has not the test's name", namespace)
	}
	if _, err := cluster.Client().AppsV1().Deployments("default").Create(t.Context(), web(2), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, "two pods", func() error { return wantPods(t, cluster, 2) })
}

func TestRestartKeepsObjectsAndAddress(t *testing.T) {
	cluster := process.Start(t, process.APIOnly())
	namespace := cluster.Namespace(t) // no controllers: nothing to wait for
	client := cluster.Client()
	cluster.Restart(t)
	if _, err := client.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{}); err != nil {
		t.Errorf("after a restart, by a client from before: %v", err)
	}
	// No admission waits for a service account, which nothing would make.
	_, err := client.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Error(err)
	}
}

func TestCRDsAndWebhooks(t *testing.T) {
	cluster := process.Start(t, process.APIOnly())
	dir := t.TempDir()
	for name, text := range map[string]string{"crd.yaml": boats, "hook.yaml": hook, "README.md": "not a manifest"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cluster.CRDs(t, dir)
	cluster.CRDs(t, dir) // again: nothing changes
	reach := cluster.Webhooks(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || r.URL.Path != "/validate" {
			http.Error(w, fmt.Sprint(r.URL, err), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{Message: "no boats today"}}
		json.NewEncoder(w).Encode(review)
	}), dir)
	if reach.URL == nil || len(reach.CABundle) == 0 {
		t.Errorf("%+v says not how to reach it", reach)
	}
	boats := cluster.Dynamic().Resource(schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "boats"}).Namespace("default")
	boat := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.org/v1", "kind": "Boat", "metadata": map[string]any{"name": "karve"}}}
	cluster.Eventually(t, "the webhook is asked", func() error { // the API server learns of webhooks through a watch
		_, err := boats.Create(t.Context(), boat, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "no boats today") {
			return fmt.Errorf("a boat was made: %v", err)
		}
		return nil
	})
}

func TestOptions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "here")
	t.Run("first", func(t *testing.T) {
		cluster := process.Start(t, process.DataDir(dir), process.WithoutControllers("deployment-controller"),
			process.FeatureGates("ContextualLogging=true", "LoggingBetaOptions=true"), process.Args("--log-level", "debug"))
		if !strings.Contains(cluster.Log(), "starting the API server") {
			t.Errorf("no debug lines in the log: %.200s", cluster.Log())
		}
		_, err := cluster.Client().CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{})
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("again", func(t *testing.T) {
		cluster := process.Start(t, process.DataDir(dir))
		if _, err := cluster.Client().CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// fatal is a test that may fail.
type fatal struct {
	testing.TB
	said string
}

func (f *fatal) Fatal(args ...any) {
	f.said = fmt.Sprint(args...)
	panic(f)
}

func (f *fatal) Helper() {}

// A test's faults apply to Pods and nodes that are there, and end again.
func TestSimulatedFaults(t *testing.T) {
	cluster := process.Start(t, process.Nodes(1))
	namespace, ctx := cluster.Namespace(t), t.Context()
	cluster.SimulatePods(t, namespace, "fails=100%", "run-for=10ms..20ms", "seed=7")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "c"}}}}
	if _, err := cluster.Client().CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, "the Pod fails", func() error {
		got, err := cluster.Client().CoreV1().Pods(namespace).Get(ctx, "a", metav1.GetOptions{})
		if err == nil && got.Status.Phase != corev1.PodFailed {
			err = fmt.Errorf("its phase is %s", got.Status.Phase)
		}
		return err
	})
	for annotation, want := range map[string]corev1.ConditionStatus{"not-ready=true": corev1.ConditionFalse, "not-ready=": corev1.ConditionTrue} {
		cluster.SimulateNode(t, "simulated-0", annotation)
		cluster.Eventually(t, "the node's condition Ready is "+string(want), func() error {
			got, err := cluster.Client().CoreV1().Nodes().Get(ctx, "simulated-0", metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range got.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status != want {
					return fmt.Errorf("it is %s: %s", c.Status, c.Message)
				}
			}
			return nil
		})
	}
}

func TestAStartThatFails(t *testing.T) {
	for _, test := range []struct{ options, want string }{
		{"--secure-prot=1", "did you mean --secure-port?"},
		{"--feature-gates=NoSuchGate=true", "NoSuchGate"},
	} {
		if said := startFails(t, process.Args(test.options)); !strings.Contains(said, test.want) {
			t.Errorf("%s: %q, want the server's own words: %q", test.options, said, test.want)
		}
	}
}

// Without a program, the failure says what to do.
func TestNoProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, test := range []struct {
		variable, want string
		options        []process.Option
	}{
		{variable: "", want: "sh karve-install.sh binary"},
		{variable: "/no/such/karve", want: "KARVE_BINARY: "},
		{variable: "/bin/sh", options: []process.Option{process.Binary("/no/such/option")}, want: "/no/such/option"},
	} {
		t.Setenv(process.BinaryVariable, test.variable)
		if said := startFails(t, test.options...); !strings.Contains(said, test.want) {
			t.Errorf("%q, want %q in it", said, test.want)
		}
	}
}

// startFails starts a cluster that does not start, and returns what its test says.
func startFails(t *testing.T, options ...process.Option) string {
	f := &fatal{TB: t}
	func() {
		defer func() { recover() }()
		process.Start(f, options...)
	}()
	return f.said
}

// childTest is a test process that starts a cluster and hangs until it is killed.
func childTest() {
	t := &fatal{TB: alone{}}
	cluster := process.Start(t, process.APIOnly())
	fmt.Println(cluster.Kubeconfig(), cluster.Fork(t).Kubeconfig())
	select {}
}

// alone is a test that the testing package does not know of.
type alone struct{ testing.TB }

func (alone) Cleanup(f func()) { neverCalled = append(neverCalled, f) }

// neverCalled keeps what a test keeps until it ends, such as locks.
var neverCalled []func()

func (alone) Context() context.Context { return context.Background() }

// When a test is killed, without a chance to handle a signal, its clusters end too, and the next
// test removes their data.
func TestAKilledTestEndsItsCluster(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "TEST_STARTS_A_CLUSTER=1", "TMPDIR="+dir, "TMP="+dir)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var kubeconfig, forks string
	if _, err := fmt.Fscanln(stdout, &kubeconfig, &forks); err != nil {
		t.Fatal(err)
	}
	alive := map[string]func() error{}
	var any *process.Cluster
	for _, path := range []string{kubeconfig, forks} {
		cluster, err := process.Connect(path, false)
		if err != nil {
			t.Fatal(err)
		}
		any = cluster
		alive[path] = func() error {
			_, err := cluster.Client().Discovery().ServerVersion()
			return err
		}
		if err := alive[path](); err != nil {
			t.Fatal(err)
		}
	}
	left := func() (names []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	const kept = "karve-cluster-1" // a user's data directory
	if err := errors.Join(os.Mkdir(filepath.Join(dir, kept), 0o700), os.WriteFile(filepath.Join(dir, kept, "lock"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, kept, "mvcc.db"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	used := left()
	process.Sweep(dir)
	if after := left(); len(used) < 4 || !slices.Equal(after, used) { // of both clusters, the snapshot and the user
		t.Errorf("while the test runs, %q are left of %q", after, used)
	}
	cmd.Process.Kill()
	cmd.Wait()
	any.Eventually(t, "the clusters go", func() error {
		for path, alive := range alive {
			if alive() == nil {
				return fmt.Errorf("the cluster of %s is there, and its test was killed", path)
			}
		}
		return nil
	})
	any.Eventually(t, "their data go", func() error { // a server that ends may still write a file
		process.Sweep(dir)
		if after := left(); !slices.Equal(after, []string{kept}) {
			return fmt.Errorf("%q are left, want the user's", after)
		}
		return nil
	})
}

const boats = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {plural: boats, singular: boat, kind: Boat, listKind: BoatList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: another-kind, namespace: default}
`

const hook = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: boats}
webhooks:
- name: boats.example.org
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {service: {name: hook, namespace: default, path: /validate}}
  rules:
  - {apiGroups: [example.org], apiVersions: [v1], resources: [boats], operations: [CREATE]}
`
