package server_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/server/deviations"
)

// A type without a watch cache answers lists and watches like one with a cache: with the same
// objects and events for each kind of request.
func TestTypeWithoutCacheIsServedAsOneWithIt(t *testing.T) {
	compares(t, deviations.Uncached)
	c := shared(t)
	before := cachedEvents(t, c)
	with := storyOf(t, c, "runtimeclasses", &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "any",
	}})
	without := storyOf(t, c, "priorityclasses", &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": int64(7),
	}})
	if !slices.Equal(with, without) {
		t.Errorf("with a cache:\n%s\nwithout:\n%s", strings.Join(with, "\n"), strings.Join(without, "\n"))
	}
	if len(with) < 20 {
		t.Errorf("the story is %q: has the test lost its steps?", with)
	}
	after := cachedEvents(t, c)
	for resource, cached := range map[string]bool{"runtimeclasses": true, "priorityclasses": false} {
		if grown := after[resource] != before[resource]; grown != cached {
			t.Errorf("%s: a cache has seen its events: %v (%s, then %s), want %v", resource, grown, before[resource], after[resource], cached)
		}
	}
}

// cachedEvents returns how many events the watch cache of each resource has had. Other control
// planes of this process, which have stopped by now, have had some of them.
func cachedEvents(t *testing.T, c *cluster) map[string]string {
	t.Helper()
	status, body := get(t, plainClient(t), c.InsecureURL+"/metrics")
	if status != http.StatusOK {
		t.Fatalf("metrics: %d %s", status, body)
	}
	events := map[string]string{}
	for _, m := range cacheEvents.FindAllStringSubmatch(body, -1) {
		events[m[1]] = m[2]
	}
	return events
}

var cacheEvents = regexp.MustCompile(`(?m)^apiserver_watch_cache_events_received_total\{.*resource="([^"]*)".*\} (\S+)$`)

// storyOf requests objects of a type in every way while they change, and returns a record of
// the responses.
func storyOf(t *testing.T, c *cluster, resource string, template *unstructured.Unstructured) (log []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	gv, err := schema.ParseGroupVersion(template.GetAPIVersion())
	fatal(t, err)
	objects := c.dynamic.Resource(gv.WithResource(resource))
	const mine = "uncached-test=yes"
	object := func(name, step string) *unstructured.Unstructured {
		o := template.DeepCopy()
		o.SetName(name)
		o.SetLabels(map[string]string{"uncached-test": "yes", "step": step})
		return o
	}
	made := func(o *unstructured.Unstructured, err error) *unstructured.Unstructured {
		t.Helper()
		fatal(t, err)
		return o
	}
	list := func(what string, o metav1.ListOptions) *unstructured.UnstructuredList {
		t.Helper()
		o.LabelSelector = mine
		l, err := objects.List(ctx, o)
		if err != nil {
			log = append(log, fmt.Sprintf("list %s: %s", what, apierrors.ReasonForError(err)))
			return nil
		}
		var names []string
		for _, item := range l.Items {
			names = append(names, item.GetName()+"/"+item.GetLabels()["step"])
		}
		log = append(log, fmt.Sprintf("list %s: %q continues=%v", what, names, l.GetContinue() != ""))
		return l
	}
	watching := func(what, selector string, o metav1.ListOptions, events int) {
		t.Helper()
		o.LabelSelector = selector
		w, err := objects.Watch(ctx, o)
		if err != nil {
			log = append(log, fmt.Sprintf("watch %s: %s", what, apierrors.ReasonForError(err)))
			return
		}
		defer w.Stop()
		for seen := 0; seen < events; seen++ {
			e, ok := <-w.ResultChan()
			if !ok {
				t.Fatalf("%s: watch %s ended; so far %q", resource, what, log)
			}
			o := e.Object.(*unstructured.Unstructured)
			if e.Type == watch.Bookmark && len(o.GetAnnotations()) == 0 {
				seen-- // a bookmark that comes at a fixed interval
				continue
			}
			text := fmt.Sprintf("%s %s/%s", e.Type, o.GetName(), o.GetLabels()["step"])
			if e.Type == watch.Bookmark {
				text = fmt.Sprintf("%s %s", e.Type, o.GetAnnotations()[metav1.InitialEventsAnnotationKey])
			}
			log = append(log, "watch "+what+": "+text)
		}
	}
	relabel := func(o *unstructured.Unstructured, step string) *unstructured.Unstructured {
		u := o.DeepCopy()
		u.SetLabels(map[string]string{"uncached-test": "yes", "step": step})
		return made(objects.Update(ctx, u, metav1.UpdateOptions{}))
	}
	a := made(objects.Create(ctx, object("uncached-a", "1"), metav1.CreateOptions{}))
	made(objects.Create(ctx, object("uncached-b", "1"), metav1.CreateOptions{}))
	list("newest", metav1.ListOptions{})
	a = relabel(a, "2")
	made(objects.Create(ctx, object("uncached-c", "1"), metav1.CreateOptions{}))
	fatal(t, objects.Delete(ctx, "uncached-b", metav1.DeleteOptions{}))
	first := list("after changes", metav1.ListOptions{})
	list("exactly then", metav1.ListOptions{ResourceVersion: a.GetResourceVersion(), ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	list("not older", metav1.ListOptions{ResourceVersion: first.GetResourceVersion(), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	if page := list("a page", metav1.ListOptions{Limit: 1}); page != nil {
		list("the next page", metav1.ListOptions{Limit: 1, Continue: page.GetContinue()})
	}
	// Clients repeat this request for 40 seconds, unless they are told not to.
	err = c.RESTClient().Get().AbsPath("/apis", gv.String(), resource).Param("resourceVersion", "999999999999").
		Param("resourceVersionMatch", string(metav1.ResourceVersionMatchNotOlderThan)).MaxRetries(0).Do(ctx).Error()
	log = append(log, fmt.Sprintf("list of the future: %s", apierrors.ReasonForError(err)))

	// After that revision, c appears and b goes. With a selector, an object that no longer
	// matches is deleted.
	watching("since", mine, metav1.ListOptions{ResourceVersion: a.GetResourceVersion()}, 2)
	watching("any", mine, metav1.ListOptions{ResourceVersion: "0"}, 2)
	watching("newest", mine, metav1.ListOptions{}, 2)
	relabel(a, "3")
	watching("of what leaves and enters", "step=2", metav1.ListOptions{ResourceVersion: first.GetResourceVersion()}, 1)
	watching("of what enters", "step=3", metav1.ListOptions{ResourceVersion: first.GetResourceVersion()}, 1)
	initial := metav1.ListOptions{SendInitialEvents: ptr.To(true), AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}
	watching("with initial events", mine, initial, 3)
	initial.ResourceVersion = first.GetResourceVersion()
	watching("with initial events since", mine, initial, 3)
	initial.AllowWatchBookmarks = false
	watching("with initial events and no bookmarks", mine, initial, 2)
	for _, name := range []string{"uncached-a", "uncached-c"} {
		fatal(t, objects.Delete(ctx, name, metav1.DeleteOptions{}))
	}
	list("at the end", metav1.ListOptions{})
	return log
}
