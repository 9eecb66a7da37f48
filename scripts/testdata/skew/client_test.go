// Package skew is what scripts/skew does with a release of client-go: `karve run` starts it with a
// new cluster.
package skew

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
)

// patience limits what a test waits for.
const patience = 2 * time.Minute

const cbor = "application/cbor"

// recorded are the requests that clients of one configuration have made.
type recorded struct {
	sync.Mutex
	requests []*http.Request
	answers  []http.Header
}

func (r *recorded) all() []*http.Request {
	r.Lock()
	defer r.Unlock()
	return slices.Clone(r.requests)
}

func (r *recorded) contentTypes() (types []string) {
	r.Lock()
	defer r.Unlock()
	for _, h := range r.answers {
		types = append(types, h.Get("Content-Type"))
	}
	return types
}

type recorder struct {
	into *recorded
	next http.RoundTripper
}

func (r recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := r.next.RoundTrip(request)
	r.into.Lock()
	defer r.into.Unlock()
	r.into.requests = append(r.into.requests, request)
	if err == nil {
		r.into.answers = append(r.into.answers, answer.Header)
	}
	return answer, err
}

// config returns a configuration of the cluster's administrator, and the requests that its clients
// make.
func config(t *testing.T) (*rest.Config, *recorded) {
	t.Helper()
	c, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	r := &recorded{}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return recorder{r, next} })
	return c, r
}

func typed(t *testing.T, c *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// eventually waits until do returns no error.
func eventually(t *testing.T, what string, do func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for err := do(); err != nil; err = do() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// must returns a value, and panics with an error, which ends the test.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func TestTyped(t *testing.T) {
	for _, contentType := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		t.Run(strings.TrimPrefix(contentType, "application/"), func(t *testing.T) {
			c, requests := config(t)
			c.ContentType = contentType
			c.AcceptContentTypes = contentType
			client, ctx := typed(t, c), t.Context()
			namespace := must(client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "typed-"}}, metav1.CreateOptions{})).Name
			maps := client.CoreV1().ConfigMaps(namespace)
			made := must(maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"k": "1"}}, metav1.CreateOptions{}))
			if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
				m, err := maps.Get(ctx, "a", metav1.GetOptions{})
				if err != nil {
					return err
				}
				m.Data["k"] = "2"
				_, err = maps.Update(ctx, m, metav1.UpdateOptions{})
				return err
			}); err != nil {
				t.Fatal(err)
			}
			made.Data["k"] = "3"
			if _, err := maps.Update(ctx, made, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
				t.Errorf("an update of an old object: got %v, want a conflict", err)
			}
			got := must(maps.Patch(ctx, "a", types.StrategicMergePatchType, []byte(`{"data": {"p": "4"}}`), metav1.PatchOptions{}))
			if got.UID != made.UID || got.Data["k"] != "2" || got.Data["p"] != "4" {
				t.Errorf("patched: got %v of %s, want k=2 and p=4 of %s", got.Data, got.UID, made.UID)
			}
			applied := must(maps.Apply(ctx, applycorev1.ConfigMap("b", namespace).WithData(map[string]string{"k": "5"}), metav1.ApplyOptions{FieldManager: "skew"}))
			if len(applied.ManagedFields) != 1 || applied.ManagedFields[0].Operation != metav1.ManagedFieldsOperationApply {
				t.Errorf("applied: got %v, want one manager, which applies", applied.ManagedFields)
			}
			first := must(maps.List(ctx, metav1.ListOptions{Limit: 1}))
			rest := must(maps.List(ctx, metav1.ListOptions{Continue: first.Continue}))
			if len(first.Items) != 1 || len(rest.Items) == 0 {
				t.Errorf("a list in pages: got %d and %d objects", len(first.Items), len(rest.Items))
			}
			deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: appsv1.DeploymentSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "d"}},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "d"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/c"}}}},
			}}
			must(client.AppsV1().Deployments(namespace).Create(ctx, deployment, metav1.CreateOptions{}))
			if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the controller writes as well
				scale, err := client.AppsV1().Deployments(namespace).GetScale(ctx, "d", metav1.GetOptions{})
				if err != nil {
					return err
				}
				scale.Spec.Replicas = 0
				_, err = client.AppsV1().Deployments(namespace).UpdateScale(ctx, "d", scale, metav1.UpdateOptions{})
				return err
			}); err != nil {
				t.Error(err)
			}
			if err := maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=a"}); err != nil {
				t.Error(err)
			}
			if _, err := maps.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("a deleted object: got %v, want not found", err)
			}
			if err := client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
			for _, got := range requests.contentTypes() {
				if got != contentType {
					t.Errorf("got an answer of the type %s, want %s", got, contentType)
				}
			}
		})
	}
}

const boats = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "boats.skew.example.com"}, "spec": {
	"group": "skew.example.com", "scope": "Namespaced", "names": {"plural": "boats", "singular": "boat", "kind": "Boat"},
	"versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": {"type": "object", "properties": {
		"spec": {"type": "object", "properties": {"oars": {"type": "integer"}}}, "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}]}}`

// Custom resources go through the dynamic client, a dynamic informer and the metadata client. With
// SKEW_CBOR, the requests and answers have to be CBOR.
func TestDynamic(t *testing.T) {
	c, requests := config(t)
	ctx := t.Context()
	client := must(dynamic.NewForConfig(c))
	definition := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(boats), definition); err != nil {
		t.Fatal(err)
	}
	must(client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).Create(ctx, definition, metav1.CreateOptions{}))
	kind := schema.GroupVersionResource{Group: "skew.example.com", Version: "v1", Resource: "boats"}
	all := client.Resource(kind).Namespace("default")
	boat := func(name string, oars int64) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "skew.example.com/v1", "kind": "Boat", "metadata": map[string]any{"name": name}, "spec": map[string]any{"oars": oars}}}
	}
	eventually(t, "create a custom resource", func() error {
		_, err := all.Create(ctx, boat("cog", 2), metav1.CreateOptions{})
		return err
	})
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	informer := factory.ForResource(kind).Informer()
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("the informer has not synced")
	}
	got := must(all.Patch(ctx, "cog", types.MergePatchType, []byte(`{"spec": {"oars": 4}}`), metav1.PatchOptions{}))
	must(all.UpdateStatus(ctx, func() *unstructured.Unstructured {
		unstructured.SetNestedField(got.Object, "sea", "status", "at")
		return got
	}(), metav1.UpdateOptions{}))
	must(all.Apply(ctx, "hulk", boat("hulk", 6), metav1.ApplyOptions{FieldManager: "skew"}))
	if list := must(all.List(ctx, metav1.ListOptions{})); len(list.Items) != 2 {
		t.Errorf("got %d objects, want 2", len(list.Items))
	}
	eventually(t, "the informer has both objects", func() error {
		for _, name := range []string{"cog", "hulk"} {
			if _, exists, err := informer.GetStore().GetByKey("default/" + name); err != nil || !exists {
				return apierrors.NewNotFound(kind.GroupResource(), name)
			}
		}
		return nil
	})
	parts := must(must(metadata.NewForConfig(c)).Resource(kind).Namespace("default").Get(ctx, "cog", metav1.GetOptions{}))
	if parts.UID != got.GetUID() {
		t.Errorf("metadata: got the uid %s, want %s", parts.UID, got.GetUID())
	}
	if err := all.Delete(ctx, "cog", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if wants := os.Getenv("SKEW_CBOR") != ""; wants {
		sent, answered := 0, 0
		for _, r := range requests.all() {
			if r.Header.Get("Content-Type") == cbor {
				sent++
			}
		}
		for _, got := range requests.contentTypes() {
			if strings.HasPrefix(got, cbor) {
				answered++
			}
		}
		if sent == 0 || answered == 0 {
			t.Errorf("got %d requests and %d answers of CBOR, want some: %v", sent, answered, requests.contentTypes())
		}
	}
}

// A watch with initial events ends them with a bookmark.
func TestWatchList(t *testing.T) {
	c, _ := config(t)
	client, ctx := typed(t, c), t.Context()
	yes := true
	w := must(client.CoreV1().Namespaces().Watch(ctx, metav1.ListOptions{AllowWatchBookmarks: true, SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}))
	defer w.Stop()
	seen, marked := map[string]bool{}, false
	next := func() watch.Event {
		t.Helper()
		select {
		case event, open := <-w.ResultChan():
			if !open {
				t.Fatal("the watch has ended")
			}
			return event
		case <-time.After(patience):
			t.Fatal("no event comes")
		}
		return watch.Event{}
	}
	for !marked {
		event := next()
		namespace, ok := event.Object.(*corev1.Namespace)
		switch {
		case !ok:
			t.Fatalf("got %v %v", event.Type, event.Object)
		case event.Type == watch.Bookmark:
			marked = namespace.Annotations[metav1.InitialEventsAnnotationKey] == "true"
		default:
			seen[namespace.Name] = true
		}
	}
	if !seen["default"] || !seen["kube-system"] {
		t.Errorf("got the namespaces %v before the bookmark", seen)
	}
	must(client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "watched"}}, metav1.CreateOptions{}))
	for event := next(); event.Type != watch.Added || event.Object.(*corev1.Namespace).Name != "watched"; event = next() {
	}
}

// Informers stream their first lists, which is client-go's default, and follow changes.
func TestInformers(t *testing.T) {
	c, requests := config(t)
	c.ContentType = "application/vnd.kubernetes.protobuf"
	client, ctx := typed(t, c), t.Context()
	factory := informers.NewSharedInformerFactory(client, 0)
	maps, pods := factory.Core().V1().ConfigMaps(), factory.Core().V1().Pods()
	added, removed := make(chan string, 1000), make(chan string, 1000)
	must(maps.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { added <- o.(*corev1.ConfigMap).Name },
		DeleteFunc: func(o any) { removed <- must(cache.DeletionHandlingMetaNamespaceKeyFunc(o)) },
	}))
	pods.Informer()
	factory.Start(ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			t.Fatalf("the informer of %v has not synced", kind)
		}
	}
	must(client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "informed"}}, metav1.CreateOptions{}))
	wait := func(events chan string, want string) {
		t.Helper()
		deadline := time.After(patience)
		for {
			select {
			case got := <-events:
				if got == want {
					return
				}
			case <-deadline:
				t.Fatalf("no event of %s comes", want)
			}
		}
	}
	wait(added, "informed")
	if _, err := maps.Lister().ConfigMaps("default").Get("informed"); err != nil {
		t.Error(err)
	}
	if err := client.CoreV1().ConfigMaps("default").Delete(ctx, "informed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wait(removed, "default/informed")
	streamed := 0
	for _, r := range requests.all() {
		query := r.URL.Query()
		if r.Method == http.MethodGet && query.Get("sendInitialEvents") == "true" {
			streamed++
		}
		if r.Method == http.MethodGet && !query.Has("watch") {
			t.Errorf("the informers made the request %s, want only watches", r.URL)
		}
	}
	if streamed != 2 {
		t.Errorf("got %d lists as streams, want one for each of 2 informers", streamed)
	}
}

// Of two candidates one leads, and the other one when the first releases the lease.
func TestLeaderElection(t *testing.T) {
	c, _ := config(t)
	client := typed(t, c)
	leads := make(chan string, 10)
	run := func(ctx context.Context, name string) {
		lock := must(resourcelock.New(resourcelock.LeasesResourceLock, "default", "skew", client.CoreV1(), client.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: name}))
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock: lock, ReleaseOnCancel: true, LeaseDuration: 60 * time.Second, RenewDeadline: 30 * time.Second, RetryPeriod: 200 * time.Millisecond,
			Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { leads <- name }, OnStoppedLeading: func() {}},
		})
	}
	next := func(want string) {
		t.Helper()
		select {
		case got := <-leads:
			if got != want {
				t.Fatalf("%s leads, want %s", got, want)
			}
		case <-time.After(patience):
			t.Fatalf("%s does not lead", want)
		}
	}
	one, stopOne := context.WithCancel(t.Context())
	two, stopTwo := context.WithCancel(t.Context())
	var both sync.WaitGroup
	both.Add(2)
	go func() { defer both.Done(); run(one, "one") }()
	next("one")
	go func() { defer both.Done(); run(two, "two") }()
	stopOne()
	next("two")
	stopTwo()
	both.Wait()
}

// Discovery takes two requests, for the aggregated documents, and every document of OpenAPI v3 can be
// read.
func TestDiscovery(t *testing.T) {
	c, requests := config(t)
	client := must(discovery.NewDiscoveryClientForConfig(c))
	groups, resources, err := client.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	if len(groups) < 15 || len(resources) < len(groups) {
		t.Errorf("got %d groups and %d lists of resources", len(groups), len(resources))
	}
	var paths []string
	for _, r := range requests.all() {
		paths = append(paths, r.URL.Path)
	}
	if slices.Sort(paths); !slices.Equal(paths, []string{"/api", "/apis"}) {
		t.Errorf("discovery made the requests %v, want only /api and /apis", paths)
	}
	documents := must(client.OpenAPIV3().Paths())
	for _, path := range []string{"api/v1", "apis/apps/v1"} {
		if document, ok := documents[path]; !ok {
			t.Errorf("there is no document of %s", path)
		} else if text := must(document.Schema("application/com.github.proto-openapi.spec.v3@v1.0+protobuf")); len(text) == 0 {
			t.Errorf("the document of %s is empty", path)
		}
	}
	if version := must(client.ServerVersion()); !strings.HasPrefix(version.GitVersion, "v1.") {
		t.Errorf("got the version %v", version)
	}
}
