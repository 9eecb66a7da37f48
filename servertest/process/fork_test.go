package process_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"

	"github.com/karve-k8s/karve/servertest/process"
)

var boatsResource = schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "boats"}

func boat(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.org/v1", "kind": "Boat", "metadata": map[string]any{"name": name}}}
}

func web(replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": "web"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}},
		}},
	}
}

// furnished starts a cluster with a CRD and a Boat, a Deployment with Pods, and a webhook
// that refuses Boats named "wreck". It takes a snapshot of it.
func furnished(t *testing.T, options ...process.Option) *process.Server {
	t.Helper()
	base := process.Start(t, options...)
	dir := t.TempDir()
	for name, text := range map[string]string{"crd.yaml": boats, "hook.yaml": hook} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	base.CRDs(t, dir)
	base.Webhooks(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: review.Request.Name != "wreck", Result: &metav1.Status{Message: "no wrecks"}}
		json.NewEncoder(w).Encode(review)
	}), dir)
	if _, err := base.Dynamic().Resource(boatsResource).Namespace("default").Create(t.Context(), boat("karve"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := base.Client().AppsV1().Deployments("default").Create(t.Context(), web(3), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	base.Eventually(t, "three pods", func() error { return wantPods(t, base, 3) })
	atRest(t, base)
	base.Snapshot(t)
	return base
}

func wantPods(t *testing.T, cluster *process.Server, want int) error {
	pods, err := cluster.Client().CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err == nil && len(pods.Items) != want {
		err = fmt.Errorf("%d pods, want %d", len(pods.Items), want)
	}
	deployment, err2 := cluster.Client().AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{})
	if err == nil && (err2 != nil || int(deployment.Status.Replicas) != want) {
		err = fmt.Errorf("%d replicas in the status, want %d: %v", deployment.Status.Replicas, want, err2)
	}
	return err
}

// atRest waits until nothing has changed for a while.
func atRest(t *testing.T, cluster *process.Server) {
	t.Helper()
	last, since := everything(t, cluster), time.Now()
	cluster.Eventually(t, "the controllers come to rest", func() error {
		now := everything(t, cluster)
		if changed := differences(last, now); len(changed) > 0 {
			last, since = now, time.Now()
			return fmt.Errorf("%v have changed", changed)
		}
		if time.Since(since) < 300*time.Millisecond {
			return fmt.Errorf("it rests for %v only", time.Since(since))
		}
		return nil
	})
}

// everything returns all objects of all kinds as JSON without their resourceVersion, by
// resource, namespace and name. It leaves out the objects with which servers and nodes
// report where and that they are, and what is computed for each request.
func everything(t *testing.T, cluster *process.Server) map[string]string {
	t.Helper()
	_, lists, err := discovery.ServerGroupsAndResources(cluster.Client().Discovery())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || r.Name == "componentstatuses" || gv.Group == "metrics.k8s.io" {
				continue
			}
			found, err := cluster.Dynamic().Resource(gv.WithResource(r.Name)).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatalf("list %s: %v", r.Name, err)
			}
			all["kind "+gv.String()+"/"+r.Name] = r.Kind
			for _, item := range found.Items {
				own := item.GetNamespace() == "default" && item.GetName() == "kubernetes" && r.Name != "services" ||
					r.Name == "leases" && (strings.HasPrefix(item.GetName(), "apiserver-") || item.GetNamespace() == "kube-node-lease") ||
					r.Name == "configmaps" && item.GetNamespace() == "kube-public" && item.GetName() == "cluster-info" ||
					r.Name == "configmaps" && item.GetNamespace() == "kube-system" && slices.Contains([]string{"extension-apiserver-authentication", "kube-apiserver-legacy-service-account-token-tracking"}, item.GetName())
				if own {
					continue
				}
				key := strings.Join([]string{gv.String(), r.Name, item.GetNamespace(), item.GetName()}, "/")
				item.SetResourceVersion("")
				text, err := item.MarshalJSON()
				if err != nil {
					t.Fatal(err)
				}
				all[key] = string(text)
			}
		}
	}
	return all
}

func differences(a, b map[string]string) (keys []string) {
	for key := range a {
		if a[key] != b[key] {
			keys = append(keys, key)
		}
	}
	for key := range b {
		if _, there := a[key]; !there {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// wantSnapshot checks that a fork has what the snapshot had, and nothing else. Events may be on
// either side only: the scheduler may report late, about a Pod that came back, or after the snapshot.
func wantSnapshot(t *testing.T, fork *process.Server, want map[string]string) {
	t.Helper()
	got := everything(t, fork)
	for _, key := range differences(want, got) {
		if (want[key] == "" || got[key] == "") && strings.Contains(key, "/events/") {
			continue
		}
		t.Errorf("%s is not as in the snapshot:\n%s\nwant\n%s", key, got[key], want[key])
	}
}

// Forks in parallel: each has everything of the first cluster, and accepts that cluster's
// clients. What one does to an object, the others do not see.
func TestForks(t *testing.T) {
	base := furnished(t)
	want := everything(t, base)
	for i := range 3 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			fork := base.Fork(t)
			// Custom resources and webhooks work immediately.
			boats := fork.Dynamic().Resource(boatsResource).Namespace("default")
			if _, err := boats.Create(t.Context(), boat("wreck"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err == nil || !strings.Contains(err.Error(), "no wrecks") {
				t.Errorf("a wreck was made: %v", err)
			}
			if _, err := boats.Create(t.Context(), boat("dinghy"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
				t.Error(err)
			}
			wantSnapshot(t, fork, want)
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"fork":"%d"}}}`, i)
			if _, err := boats.Patch(t.Context(), "karve", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			replicas := int32(4 + i)
			if _, err := fork.Client().AppsV1().Deployments("default").Update(t.Context(), web(replicas), metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			fork.Eventually(t, "pods", func() error { return wantPods(t, fork, int(replicas)) })
			if i == 1 {
				fork.Restart(t)
			}
			got, err := boats.Get(t.Context(), "karve", metav1.GetOptions{})
			if err != nil || got.GetAnnotations()["fork"] != fmt.Sprint(i) {
				t.Errorf("the boat has annotations %v: %v", got.GetAnnotations(), err)
			}
		})
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("thrown away: %v", process.Thrown(base))
		}
	})
}

// Whatever a test does to a fork, the next one is as the snapshot: every object of every
// kind, with its uid. It must be the same cluster again, or this would prove nothing.
func TestAForkIsLikeTheSnapshot(t *testing.T) {
	t.Run("without nodes", func(t *testing.T) { forksAreLikeTheSnapshot(t) })
	t.Run("with nodes", func(t *testing.T) { forksAreLikeTheSnapshot(t, process.Nodes(2)) })
}

func forksAreLikeTheSnapshot(t *testing.T, options ...process.Option) {
	base := furnished(t, options...)
	want := everything(t, base)
	used := map[string]int{}
	for name, damage := range map[string]func(*testing.T, *process.Server){
		"a namespace with everything": func(t *testing.T, fork *process.Server) {
			namespace := fork.Namespace(t)
			if _, err := fork.Client().AppsV1().Deployments(namespace).Create(t.Context(), web(4), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		},
		"the deployment is deleted": func(t *testing.T, fork *process.Server) {
			if err := fork.Client().AppsV1().Deployments("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			fork.Eventually(t, "no pods", func() error {
				pods, err := fork.Client().CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
				if err == nil && len(pods.Items) > 0 {
					err = fmt.Errorf("%d pods are left", len(pods.Items))
				}
				return err
			})
		},
		"the pods are deleted, and nobody waits": func(t *testing.T, fork *process.Server) {
			if err := fork.Client().CoreV1().Pods("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
				t.Fatal(err)
			}
		},
		"the kind is deleted": func(t *testing.T, fork *process.Server) {
			kinds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
			if err := fork.Dynamic().Resource(kinds).Delete(t.Context(), "boats.example.org", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			fork.Eventually(t, "it is gone", func() error {
				_, err := fork.Dynamic().Resource(boatsResource).List(t.Context(), metav1.ListOptions{})
				if err == nil {
					return fmt.Errorf("it is there")
				}
				return nil
			})
		},
		"finalizers hold a namespace up": func(t *testing.T, fork *process.Server) {
			namespaces := fork.Client().CoreV1().Namespaces()
			if _, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.org/never"}}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := namespaces.Delete(t.Context(), "held", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		},
		"accounts, roles, webhooks and the root certificate": func(t *testing.T, fork *process.Server) {
			if err := fork.Client().CoreV1().ServiceAccounts("default").Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := fork.Client().CoreV1().ConfigMaps("default").Delete(t.Context(), "kube-root-ca.crt", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := fork.Client().RbacV1().ClusterRoles().Delete(t.Context(), "view", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := fork.Client().AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "boats", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			fork := base.Fork(t)
			used[fork.Config().Host]++
			wantSnapshot(t, fork, want)
			damage(t, fork)
		})
	}
	t.Run("after all", func(t *testing.T) {
		process.Resting(base)
		fork := base.Fork(t)
		used[fork.Config().Host]++
		wantSnapshot(t, fork, want)
		if _, err := fork.Client().AppsV1().Deployments("default").Update(t.Context(), web(5), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		fork.Eventually(t, "two more pods, by controllers that go on", func() error { return wantPods(t, fork, 5) })
	})
	if len(used) > 2 {
		t.Errorf("%d clusters were used, want 2 at most, again and again: %v; thrown away: %v", len(used), used, process.Thrown(base))
	}
}

// A cluster that its test has broken is not handed out; another one is.
func TestABrokenForkIsThrownAway(t *testing.T) {
	base := process.Start(t, process.APIOnly())
	base.Snapshot(t)
	var broken string
	t.Run("broken", func(t *testing.T) {
		fork := base.Fork(t)
		broken = fork.Config().Host
		process.Kill(fork)
	})
	t.Run("next", func(t *testing.T) {
		fork := base.Fork(t)
		if _, err := fork.Client().CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil || fork.Config().Host == broken {
			t.Errorf("the fork at %s, after that at %s was killed: %v", fork.Config().Host, broken, err)
		}
		process.Resting(base)
		if thrown := process.Thrown(base); len(thrown) != 1 {
			t.Errorf("thrown away: %v, want one cluster", thrown)
		}
	})
}

// What was written to a cluster after it was cleaned is undone before it is handed out.
func TestWhatComesLate(t *testing.T) {
	base := process.Start(t, process.APIOnly())
	base.Snapshot(t)
	var late *process.Server
	t.Run("first", func(t *testing.T) { late = base.Fork(t) })
	if !t.Run("next", func(t *testing.T) {
		process.Resting(base)
		if _, err := late.Client().CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		fork := base.Fork(t)
		if _, err := fork.Client().CoreV1().ConfigMaps("default").Get(t.Context(), "late", metav1.GetOptions{}); err == nil {
			t.Error("a ConfigMap of the test before is there")
		}
	}) {
		t.Log(process.Thrown(base))
	}
}

// A fork's snapshot is its own, and is deleted with it.
func TestForkOfAFork(t *testing.T) {
	base := process.Start(t, process.APIOnly())
	fork := base.Fork(t) // of the state now
	if _, err := fork.Client().CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "forks"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	of := fork.Fork(t)
	if _, err := of.Client().CoreV1().ConfigMaps("default").Get(t.Context(), "forks", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := base.Client().CoreV1().ConfigMaps("default").Get(t.Context(), "forks", metav1.GetOptions{}); err == nil {
		t.Error("the base has an object of its fork")
	}
}

// What a fork costs, by what is ready when it is asked for: see docs/testing.md of karve.
func BenchmarkFork(b *testing.B) {
	base := process.Start(b)
	b.Run("Start", func(b *testing.B) {
		for b.Loop() {
			t := &ending{TB: b}
			process.Start(t)
			b.StopTimer()
			t.end()
			b.StartTimer()
		}
	})
	b.Run("snapshot", func(b *testing.B) {
		for b.Loop() {
			base.Snapshot(b)
			b.StopTimer()
			process.Resting(base)
			b.StartTimer()
		}
	})
	b.Run("first, at once after the snapshot", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			base.Snapshot(b)
			b.StartTimer()
			forkAndEnd(b, base)
		}
	})
	b.Run("first, started ahead", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			base.Snapshot(b)
			process.Resting(base)
			b.StartTimer()
			forkAndEnd(b, base)
		}
	})
	base.Snapshot(b)
	b.Run("following, one at once after another", func(b *testing.B) {
		for b.Loop() {
			forkAndEnd(b, base)
		}
	})
	b.Run("following, after a test of 200 ms", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			time.Sleep(200 * time.Millisecond)
			b.StartTimer()
			forkAndEnd(b, base)
		}
	})
}

// forkAndEnd forks, and gives the fork back as the end of a test does. That is not
// measured.
func forkAndEnd(b *testing.B, base *process.Server) {
	t := &ending{TB: b}
	base.Fork(t)
	b.StopTimer()
	t.end()
	b.StartTimer()
}

// ending is a test that ends when end is called.
type ending struct {
	testing.TB
	cleanups []func()
}

func (e *ending) Cleanup(f func()) { e.cleanups = append(e.cleanups, f) }

func (e *ending) end() {
	for _, f := range slices.Backward(e.cleanups) {
		f()
	}
}
