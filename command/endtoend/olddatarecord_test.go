package endtoend

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"github.com/karve-k8s/karve/internal/eventually"
)

// recorded is an object as a server served it, and where.
type recorded struct {
	GVR    schema.GroupVersionResource `json:"resource"`
	Object map[string]any              `json:"object"`
}

func (r recorded) meta() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: r.Object}
}

// key is where the object is, in any version: "deployments.apps/harbour/crane".
func (r recorded) key() string {
	return strings.Join([]string{r.GVR.GroupResource().String(), r.meta().GetNamespace(), r.meta().GetName()}, "/")
}

// record returns every object of a server, once and in the preferred version of its group. It leaves
// out events, which expire.
func record(t *testing.T, p *process) map[string]recorded {
	t.Helper()
	lists, err := client(t, p.plain()).Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	c, err := dynamic.NewForConfig(p.plain())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]recorded{}
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "get"}}, lists) {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if slices.Contains(virtual, r.Name) || r.Name == "events" {
				continue
			}
			found, err := listIn(t, c, gv.WithResource(r.Name))
			if err != nil {
				t.Fatal(err)
			}
			maps.Copy(all, found)
		}
	}
	return all
}

// listIn lists the objects of a resource in one version.
func listIn(t *testing.T, c dynamic.Interface, gvr schema.GroupVersionResource) (map[string]recorded, error) {
	found, err := c.Resource(gvr).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	all := map[string]recorded{}
	for _, item := range found.Items {
		r := recorded{gvr, map[string]any{}}
		if err := json.Unmarshal([]byte(content(t, item)), &r.Object); err != nil { // numbers as in a file
			return nil, err
		}
		all[r.key()] = r
	}
	return all, nil
}

// recordAs is record, but in the versions that the objects in want were recorded in, as far as they
// are still served.
func recordAs(t *testing.T, p *process, want map[string]recorded) map[string]recorded {
	t.Helper()
	all := record(t, p)
	c, err := dynamic.NewForConfig(p.plain())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[schema.GroupVersionResource]bool{}
	for _, now := range all {
		seen[now.GVR] = true
	}
	for _, w := range want {
		if seen[w.GVR] {
			continue
		}
		seen[w.GVR] = true
		found, err := listIn(t, c, w.GVR)
		if apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		maps.Copy(all, found)
	}
	return all
}

// writeRecords writes a file of one JSON value for each line, compressed.
func writeRecords[T any](t *testing.T, path string, all []T) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	to := json.NewEncoder(w)
	for _, r := range all {
		if err := to.Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil && !errors.Is(err, fs.ErrClosed) {
		t.Fatal(err)
	}
}

// readRecords reads a file of writeRecords.
func readRecords[T any](t *testing.T, path string) (all []T) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var one T
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, one)
	}
	if err := lines.Err(); err != nil || len(all) == 0 {
		t.Fatalf("%s has %d records: %v", path, len(all), err)
	}
	return all
}

func writeObjects(t *testing.T, path string, all map[string]recorded) {
	t.Helper()
	var sorted []recorded
	for _, key := range slices.Sorted(maps.Keys(all)) {
		sorted = append(sorted, all[key])
	}
	writeRecords(t, path, sorted)
}

func readObjects(t *testing.T, path string) map[string]recorded {
	t.Helper()
	all := map[string]recorded{}
	for _, r := range readRecords[recorded](t, path) {
		all[r.key()] = r
	}
	return all
}

// serversAddress are the objects in which a server publishes its address, a moment after it is ready.
var serversAddress = []string{"endpoints/default/kubernetes", "endpointslices.discovery.k8s.io/default/kubernetes"}

// atRest returns what list does, when it has returned the same several times: nothing changes but what
// every running server writes.
func atRest(t *testing.T, times int, list func() map[string]recorded) map[string]recorded {
	t.Helper()
	versions := func(all map[string]recorded) map[string]string {
		out := map[string]string{}
		for key, r := range all {
			if !isExpected(key) {
				out[key] = r.meta().GetResourceVersion()
			}
		}
		return out
	}
	last, same := list(), 0
	eventually.Nil(t, "the controllers to come to rest", func() error {
		now := list()
		for _, key := range serversAddress {
			if _, there := now[key]; !there {
				return fmt.Errorf("there is no %s yet", key)
			}
		}
		if !maps.Equal(versions(last), versions(now)) {
			last, same = now, 0
			return errors.New("objects still change")
		}
		last = now
		if same++; same < times {
			return fmt.Errorf("all was the same %d times", same)
		}
		return nil
	})
	return last
}
