package server_test

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/karve-k8s/karve/server/deviations"
)

// quietTypes are some of the types without a watch cache, with an object of each.
var quietTypes = []struct {
	resource  schema.GroupVersionResource
	kind      string
	namespace string
	fields    map[string]any
}{
	{schema.GroupVersionResource{Version: "v1", Resource: "limitranges"}, "LimitRange", "default", nil},
	{schema.GroupVersionResource{Version: "v1", Resource: "resourcequotas"}, "ResourceQuota", "default", nil},
	{schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}, "ClusterRole", "", nil},
	{schema.GroupVersionResource{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"}, "PriorityClass", "", map[string]any{"value": int64(1)}},
	{schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"}, "StorageClass", "", map[string]any{"provisioner": "none"}},
	{schema.GroupVersionResource{Version: "v1", Resource: "events"}, "Event", "default", map[string]any{
		"involvedObject": map[string]any{"kind": "ConfigMap", "name": "busy-0", "namespace": "default"}}},
}

// While no object of a type without a watch cache changes, a client still learns newer
// revisions, so it can renew its watch after everything else was compacted. It could not
// continue from where it began, because that history has been compacted.
func TestQuietWatchesOutliveCompaction(t *testing.T) {
	compares(t, deviations.Uncached)
	c := start(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	began := map[schema.GroupVersionResource]string{}
	watches := map[schema.GroupVersionResource]watch.Interface{}
	for _, quiet := range quietTypes {
		one := quiet.resource
		list, err := c.dynamic.Resource(one).List(ctx, metav1.ListOptions{})
		fatal(t, err)
		began[one] = list.GetResourceVersion()
		w, err := c.dynamic.Resource(one).Watch(ctx, metav1.ListOptions{ResourceVersion: began[one], AllowWatchBookmarks: true})
		fatal(t, err)
		defer w.Stop()
		watches[one] = w
	}
	silent, err := c.dynamic.Resource(quietTypes[0].resource).Watch(ctx, metav1.ListOptions{ResourceVersion: began[quietTypes[0].resource]})
	fatal(t, err)
	defer silent.Stop()

	var written int64
	for i := range 20 {
		made, err := c.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("default").Create(ctx, &unstructured.Unstructured{
			Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": fmt.Sprint("busy-", i)}},
		}, metav1.CreateOptions{})
		fatal(t, err)
		if written, err = strconv.ParseInt(made.GetResourceVersion(), 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	told := map[schema.GroupVersionResource]string{}
	var all sync.WaitGroup
	for one, w := range watches {
		all.Go(func() {
			for e := range w.ResultChan() {
				o, ok := e.Object.(*unstructured.Unstructured)
				if !ok {
					t.Errorf("%v: %+v", one, e)
					return
				}
				if revision, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64); e.Type == watch.Bookmark && err == nil && revision >= written {
					if o.GetKind() == "" || o.GetName() != "" {
						t.Errorf("%v: the bookmark is %v", one, o)
					}
					mu.Lock()
					told[one] = o.GetResourceVersion()
					mu.Unlock()
					return
				}
			}
			t.Errorf("%v: the watch has ended without a bookmark", one)
		})
	}
	all.Wait()
	select {
	case e := <-silent.ResultChan():
		t.Errorf("a watch that allows no bookmarks got %+v", e)
	default:
	}
	if t.Failed() {
		return
	}

	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + filepath.Join(c.dir, "kine.sock")}, DialTimeout: patience, Logger: zap.NewNop()})
	fatal(t, err)
	defer etcd.Close()
	if _, err := etcd.Compact(ctx, written); err != nil {
		t.Fatal(err)
	}
	before := strings.Count(c.log.String(), compactedLine)
	for _, quiet := range quietTypes {
		one := quiet.resource
		w, err := c.dynamic.Resource(one).Watch(ctx, metav1.ListOptions{ResourceVersion: told[one], AllowWatchBookmarks: true})
		if err != nil {
			t.Errorf("%v: renewed from %s: %v", one, told[one], err)
			continue
		}
		object := map[string]any{"apiVersion": one.GroupVersion().String(), "kind": quiet.kind, "metadata": map[string]any{"name": "made-later"}}
		maps.Copy(object, quiet.fields)
		if _, err := c.dynamic.Resource(one).Namespace(quiet.namespace).Create(ctx, &unstructured.Unstructured{Object: object}, metav1.CreateOptions{}); err != nil {
			t.Fatalf("%v: %v", one, err)
		}
		for e := range w.ResultChan() {
			if e.Type == watch.Bookmark {
				continue
			}
			if e.Type != watch.Added {
				t.Errorf("%v: renewed from %s: %+v, want the object made since", one, told[one], e)
			}
			break
		}
		w.Stop()
	}
	if n := strings.Count(c.log.String(), compactedLine); n != before {
		t.Errorf("the log says %q %d times", compactedLine, n-before)
	}
	// Without bookmarks, this would have happened.
	w, err := c.dynamic.Resource(quietTypes[0].resource).Watch(ctx, metav1.ListOptions{ResourceVersion: began[quietTypes[0].resource]})
	if err == nil {
		defer w.Stop()
		if e := <-w.ResultChan(); e.Type == watch.Error {
			err = apierrors.FromObject(e.Object)
		}
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("from the beginning: %v, want it expired", err)
	}
}

const compactedLine = "required revision has been compacted"
