package endtoend

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// change is what may be different after a start, and why.
type change struct {
	key    string // of one object; of all that begin with it if it ends with "*"
	how    how
	reason string
}

// how is what happens to the object.
type how string

const (
	anyhow how = "anyhow" // it may come, go and be another object
	made   how = "made"   // it was not there
	gone   how = "gone"   // it is not served any more
)

// rewritten is the same object with a new resourceVersion, in which the named fields and what is in them
// may differ, beside .metadata.managedFields.
func rewritten(fields ...string) how { return how("rewritten " + strings.Join(fields, " ")) }

// defaulted is a field that was not there and is served with that value, as JSON. The object keeps its
// resourceVersion.
func defaulted(field, value string) how { return how("defaulted " + field + " " + value) }

// allows reports whether the difference is one of a rewritten object, or the default.
func (h how) allows(d difference) bool {
	words := strings.Fields(string(h))
	switch words[0] {
	case "rewritten":
		return slices.ContainsFunc(append(words[1:], ".metadata.managedFields"), func(field string) bool {
			return d.path == field || strings.HasPrefix(d.path, field+".")
		})
	case "defaulted":
		got, err := json.Marshal(d.got)
		return err == nil && d.path == words[1] && d.want == nil && string(got) == words[2]
	}
	return false
}

func (h how) rewrites() bool { return strings.HasPrefix(string(h), "rewritten ") }

// mayChange are the objects that a server may change whenever it starts. Everything else keeps its
// resourceVersion, but for changedBy.
var mayChange = []change{
	{"leases.coordination.k8s.io/kube-system/apiserver-*", anyhow, "each API server has one; the name depends on the machine"},
	{"endpoints/default/kubernetes", rewritten(".subsets"), "the address and port of the server"},
	{"endpointslices.discovery.k8s.io/default/kubernetes", rewritten(".endpoints", ".metadata.generation", ".ports"), "the address and port of the server"},
}

// joining is the reason for the objects of package bootstrap/kubeadm.
const joining = "kubeadm join needs it"

// changedBy are the objects that a minor version of Kubernetes changes, on data of earlier ones.
var changedBy = map[int][]change{37: {
	{"clusterroles.rbac.authorization.k8s.io//system:controller:device-taint-eviction-controller", rewritten(".rules"), "it gets other rules"},
	{"clusterroles.rbac.authorization.k8s.io//system:controller:node-controller", rewritten(".rules"), "it may read leases"},
	{"clusterroles.rbac.authorization.k8s.io//system:kube-scheduler", rewritten(".rules"), "it gets other rules"},
	{"clusterroles.rbac.authorization.k8s.io//system:node", rewritten(".rules"), "it gets other rules"},
	{"clusterroles.rbac.authorization.k8s.io//system:cluster-trust-bundle-discovery", made, "ClusterTrustBundle is on by default"},
	{"clusterrolebindings.rbac.authorization.k8s.io//system:cluster-trust-bundle-discovery", made, "ClusterTrustBundle is on by default"},
	{"clusterroles.rbac.authorization.k8s.io//system:controller:kube-apiserver-serving-clustertrustbundle-publisher", made, "a controller that is on by default"},
	{"clusterrolebindings.rbac.authorization.k8s.io//system:controller:kube-apiserver-serving-clustertrustbundle-publisher", made, "a controller that is on by default"},
	{"serviceaccounts/kube-system/kube-apiserver-serving-clustertrustbundle-publisher", made, "a controller that is on by default"},
	{"clustertrustbundles.certificates.k8s.io//kubernetes.io:kube-apiserver-serving:*", made, "that controller publishes it"},
	{"clusterroles.rbac.authorization.k8s.io//system:controller:podcertificaterequestcleaner", made, "a controller that is on by default"},
	{"clusterrolebindings.rbac.authorization.k8s.io//system:controller:podcertificaterequestcleaner", made, "a controller that is on by default"},
	{"serviceaccounts/kube-system/podcertificaterequestcleaner", made, "a controller that is on by default"},
	{"clusterroles.rbac.authorization.k8s.io//system:controller:storage-version-migrator-controller", made, "a controller that is on by default"},
	{"clusterrolebindings.rbac.authorization.k8s.io//system:controller:storage-version-migrator-controller", made, "a controller that is on by default"},
	{"serviceaccounts/kube-system/storage-version-migrator-controller", made, "a controller that is on by default"},
	{"apiservices.apiregistration.k8s.io//v1.storagemigration.k8s.io", made, "a new version, on by default"},
	{"apiservices.apiregistration.k8s.io//v1beta1.storagemigration.k8s.io", made, "a version that follows another gate"},
	{"apiservices.apiregistration.k8s.io//v1alpha1.certificates.k8s.io", gone, "no resource has this version any more"},
	{"apiservices.apiregistration.k8s.io//v1alpha2.scheduling.k8s.io", gone, "no resource has this version any more"},
	{"apiservices.apiregistration.k8s.io//v1beta1.networking.k8s.io", gone, "no resource has this version any more"},
	{"apiservices.apiregistration.k8s.io//v1beta1.storage.k8s.io", gone, "no resource has this version any more"},
	{"podgroups.scheduling.k8s.io/default/ships", gone, "it cannot be read: it is stored as v1alpha2"},
	{"workloads.scheduling.k8s.io/default/fleet", gone, "it cannot be read: it is stored as v1alpha2"},
	{"persistentvolumeclaims/harbour/hold", rewritten(".status"), "its status says since when no Pod uses it (PersistentVolumeClaimUnusedSinceTime)"},
	{"csidrivers.storage.k8s.io//*", defaulted(".spec.preventPodSchedulingIfMissing", "false"), "a default (StorageCapacityScoring)"},
	{"statefulsets.apps/*", defaulted(".spec.updateStrategy.rollingUpdate.maxUnavailable", "1"), "a default (MaxUnavailableStatefulSet)"},
	{"clusterroles.rbac.authorization.k8s.io//kubeadm:get-nodes", made, joining},
	{"clusterrolebindings.rbac.authorization.k8s.io//kubeadm:*", made, joining},
	{"roles.rbac.authorization.k8s.io/kube-public/kubeadm:bootstrap-signer-clusterinfo", made, joining},
	{"rolebindings.rbac.authorization.k8s.io/kube-public/kubeadm:bootstrap-signer-clusterinfo", made, joining},
	{"roles.rbac.authorization.k8s.io/kube-system/kubeadm:*", made, joining},
	{"rolebindings.rbac.authorization.k8s.io/kube-system/kubeadm:*", made, joining},
	{"configmaps/kube-public/cluster-info", made, joining},
	{"configmaps/kube-system/kubeadm-config", made, joining},
	{"configmaps/kube-system/kubelet-config", made, joining},
	{"namespaces//kube-system", rewritten(".metadata.annotations"), "an annotation records that they were made"},
}}

// ofAuthorities are the objects that have certificates of the cluster's authorities, and may change
// with those.
var ofAuthorities = []change{
	{"clustertrustbundles.certificates.k8s.io//kubernetes.io:kube-apiserver-serving:*", anyhow, "its name has a hash of the authority's certificate"},
	{"configmaps/default/kube-root-ca.crt", rewritten(".data"), "the authority of the serving certificate"},
	{"configmaps/harbour/kube-root-ca.crt", rewritten(".data"), "the authority of the serving certificate"},
	{"configmaps/kube-node-lease/kube-root-ca.crt", rewritten(".data"), "the authority of the serving certificate"},
	{"configmaps/kube-public/kube-root-ca.crt", rewritten(".data"), "the authority of the serving certificate"},
	{"configmaps/kube-system/kube-root-ca.crt", rewritten(".data"), "the authority of the serving certificate"},
	{"configmaps/kube-system/extension-apiserver-authentication", rewritten(".data"), "the authorities of clients and of the aggregator"},
	{"secrets/harbour/pilot-token", rewritten(".data"), "it has a token and the authority of the serving certificate"},
}

// uses collects which of the changes were seen on the data directories.
type uses struct {
	sync.Mutex
	seen map[change]bool
	dirs int // that were compared
}

func (u *uses) add(seen map[change]bool) {
	u.Lock()
	defer u.Unlock()
	u.dirs++
	maps.Copy(u.seen, seen)
}

// unused returns the rows of changedBy that no directory needs any more.
func (u *uses) unused() (keys []string) {
	for _, changes := range changedBy {
		for _, c := range changes {
			if !u.seen[c] {
				keys = append(keys, c.key)
			}
		}
	}
	slices.Sort(keys)
	return keys
}

func (c change) of(key string) bool {
	prefix, all := strings.CutSuffix(c.key, "*")
	return key == c.key || all && strings.HasPrefix(key, prefix)
}

// compare returns how the objects of a server differ from the recorded ones, but for what may change,
// and which of the changes there are.
func compare(want, got map[string]recorded, may []change) (problems []string, used map[change]bool) {
	used = map[change]bool{}
	allowed := func(key string, is func(how) bool) bool {
		found := false
		for _, c := range may {
			if c.of(key) && is(c.how) {
				used[c], found = true, true
			}
		}
		return found
	}
	happens := func(key string, h how) bool { return allowed(key, func(other how) bool { return other == h }) }
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for _, key := range slices.Sorted(maps.Keys(want)) {
		w, g := want[key], got[key]
		if happens(key, anyhow) || g.Object == nil && happens(key, gone) {
			continue
		} else if g.Object == nil {
			problem("%s is gone", key)
			continue
		} else if g.meta().GetUID() != w.meta().GetUID() {
			problem("%s has the uid %s, and had %s", key, g.meta().GetUID(), w.meta().GetUID())
			continue
		}
		changed := slices.DeleteFunc(differences(w.Object, g.Object), func(d difference) bool {
			// A version that is not served any more is no reason for other content.
			return d.path == ".apiVersion" && g.GVR != w.GVR || allowed(key, func(h how) bool { return h.allows(d) })
		})
		switch {
		case g.meta().GetResourceVersion() != w.meta().GetResourceVersion() && !allowed(key, how.rewrites):
			problem("%s has the resourceVersion %s, and had %s: %v", key, g.meta().GetResourceVersion(), w.meta().GetResourceVersion(), changed)
		case len(changed) > 0:
			problem("%s is served with other content: %v", key, changed)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if _, was := want[key]; !was && !happens(key, anyhow) && !happens(key, made) {
			problem("%s was not there", key)
		}
	}
	return problems, used
}

// difference is a field in which two objects differ.
type difference struct {
	path      string
	want, got any
}

func (d difference) String() string {
	if d.path == ".metadata.managedFields" { // they say who changed the rest, and are long
		return d.path
	}
	return fmt.Sprintf("%s: got %v, want %v", d.path, d.got, d.want)
}

// differences lists the fields in which two objects differ, but for their resourceVersions.
func differences(want, got map[string]any) (all []difference) {
	var walk func(path string, want, got any)
	walk = func(path string, want, got any) {
		w, isMap := want.(map[string]any)
		g, areMaps := got.(map[string]any)
		switch {
		case isMap && areMaps:
			keys := maps.Clone(w)
			maps.Copy(keys, g)
			for _, key := range slices.Sorted(maps.Keys(keys)) {
				walk(path+"."+key, w[key], g[key])
			}
		case !reflect.DeepEqual(want, got) && path != ".metadata.resourceVersion":
			all = append(all, difference{path, want, got})
		}
	}
	walk("", want, got)
	return all
}

// TestOldDataNotices changes what is recorded or what is served. Each difference must be found.
func TestOldDataNotices(t *testing.T) {
	versions := oldVersions(t)
	const key, address = "configmaps/harbour/chart", "endpoints/default/kubernetes"
	const set, claim = "statefulsets.apps/harbour/dock", "persistentvolumeclaims/harbour/hold"
	const role = "clusterroles.rbac.authorization.k8s.io//system:node"
	type objects = map[string]recorded
	rolling := func(r recorded) map[string]any {
		strategy := r.Object["spec"].(map[string]any)["updateStrategy"].(map[string]any)
		return strategy["rollingUpdate"].(map[string]any)
	}
	rewrite := func(r recorded, field string, value any) {
		r.meta().SetResourceVersion("1")
		r.Object[field] = value
	}
	unserved := func(objects objects, key, field string, value any) {
		r := objects[key]
		r.GVR.Version, r.Object["apiVersion"], r.Object[field] = "v9", "v9", value
		objects[key] = r
	}
	for name, test := range map[string]struct {
		spoil func(want, got objects)
		found string
	}{
		"nothing":                               {func(want, got objects) {}, ""},
		"a uid":                                 {func(want, got objects) { want[key].meta().SetUID("other") }, key + " has the uid"},
		"a resourceVersion":                     {func(want, got objects) { got[key].meta().SetResourceVersion("1") }, key + " has the resourceVersion 1"},
		"a field":                               {func(want, got objects) { got[key].Object["data"] = nil }, "data: got <nil>"},
		"a lost object":                         {func(want, got objects) { delete(got, key) }, key + " is gone"},
		"a lost row":                            {func(want, got objects) { delete(want, key) }, key + " was not there"},
		"a new field":                           {func(want, got objects) { got[key].Object["new"] = 1.0 }, "new: got 1, want <nil>"},
		"a new default":                         {func(want, got objects) { delete(want[set].Object["spec"].(map[string]any), "updateStrategy") }, set + " is served"},
		"an expected default":                   {func(want, got objects) { rolling(got[set])["maxUnavailable"] = 1.0 }, ""},
		"another default than the expected one": {func(want, got objects) { rolling(got[set])["maxUnavailable"] = 2.0 }, set + " is served"},
		"a default that changed": {func(want, got objects) {
			rolling(want[set])["maxUnavailable"], rolling(got[set])["maxUnavailable"] = 2.0, 1.0
		}, set + " is served"},
		"the server's address":         {func(want, got objects) { got[address].meta().SetResourceVersion("1") }, ""},
		"more of the server's address": {func(want, got objects) { rewrite(got[address], "more", "x") }, address + " is served with other content: [.more"},
		"the status of a claim":        {func(want, got objects) { rewrite(got[claim], "status", map[string]any{"phase": "Lost"}) }, ""},
		"the content of a claim":       {func(want, got objects) { rewrite(got[claim], "spec", nil) }, claim + " is served with other content: [.spec"},
		"the rules of a role":          {func(want, got objects) { rewrite(got[role], "rules", nil) }, ""},
		"the content of a role":        {func(want, got objects) { rewrite(got[role], "aggregationRule", "x") }, role + " is served with other content: [.aggregationRule"},
		"another version":              {func(want, got objects) { unserved(got, key, "kind", "ConfigMap") }, ""},
		"another version's content":    {func(want, got objects) { unserved(got, key, "data", "x") }, key + " is served with other content: [.data"},
		"the address' object":          {func(want, got objects) { got[address].meta().SetUID("other") }, address + " has the uid"},
		"the address' existence":       {func(want, got objects) { delete(got, address) }, address + " is gone"},
	} {
		t.Run(name, func(t *testing.T) {
			file := versions[0].file("full" + objectsOf)
			want, got := readObjects(t, file), readObjects(t, file)
			test.spoil(want, got)
			problems, _ := compare(want, got, versions[0].mayChange())
			wantOne(t, problems, test.found)
		})
	}
}

// TestOldDataNeedsItsExceptions removes each change that was seen. Its row must be reported.
func TestOldDataNeedsItsExceptions(t *testing.T) {
	all := &uses{seen: map[change]bool{}}
	for _, changes := range changedBy {
		for _, c := range changes {
			all.add(map[change]bool{c: true})
		}
	}
	if got := all.unused(); len(got) > 0 {
		t.Errorf("all were seen: got %q", got)
	}
	for c := range maps.Clone(all.seen) {
		delete(all.seen, c)
		if got := all.unused(); !slices.Equal(got, []string{c.key}) {
			t.Errorf("without %q: got %q", c.key, got)
		}
		all.seen[c] = true
	}

	o := oldVersions(t)[0]
	want := readObjects(t, o.file("full"+objectsOf))
	_, seen := compare(want, want, o.mayChange())
	for c := range seen {
		if c.how != anyhow {
			t.Errorf("no object has changed, and %q was needed", c.key)
		}
	}
	delete(want, "configmaps/harbour/chart")
	made := change{"configmaps/harbour/chart", made, "a test"}
	if _, seen = compare(want, readObjects(t, o.file("full"+objectsOf)), append(o.mayChange(), made)); !seen[made] {
		t.Error("a new object has no row")
	}
}

// TestLostWritesAreNoticed is the same for writes that a killed server had acknowledged.
func TestLostWritesAreNoticed(t *testing.T) {
	o := oldVersions(t)[0]
	all := readRecords[acknowledged](t, o.file("killed"+answersOf))
	there := slices.IndexFunc(all, func(a acknowledged) bool { return !a.Deleted && a.Unanswered == "" })
	gone := slices.IndexFunc(all, func(a acknowledged) bool { return a.Deleted && a.Unanswered == "" })
	updating := slices.IndexFunc(all, func(a acknowledged) bool { return a.Unanswered == "update" })
	for name, test := range map[string]struct {
		spoil func(maps map[string]corev1.ConfigMap)
		found string
	}{
		"nothing":       {func(maps map[string]corev1.ConfigMap) {}, ""},
		"a lost object": {func(maps map[string]corev1.ConfigMap) { delete(maps, all[there].Name) }, all[there].Name},
		"a delete that is undone": {func(maps map[string]corev1.ConfigMap) {
			maps[all[gone].Name] = *configMap(all[gone].Name, "1")
		}, all[gone].Name},
		"an older version": {func(maps map[string]corev1.ConfigMap) {
			m := maps[all[there].Name]
			m.ResourceVersion = "1"
			maps[m.Name] = m
		}, all[there].Name},
		"another update than the unanswered one": {func(maps map[string]corev1.ConfigMap) {
			m := maps[all[updating].Name]
			m.Data = map[string]string{"value": "other"}
			maps[m.Name] = m
		}, all[updating].Name},
	} {
		t.Run(name, func(t *testing.T) {
			stored := map[string]corev1.ConfigMap{}
			for _, r := range readObjects(t, o.file("killed"+objectsOf)) {
				var m corev1.ConfigMap
				if r.GVR.Resource == "configmaps" {
					if err := runtime.DefaultUnstructuredConverter.FromUnstructured(r.Object, &m); err != nil {
						t.Fatal(err)
					}
					stored[m.Name] = m
				}
			}
			test.spoil(stored)
			wantOne(t, lost(all, slices.Collect(maps.Values(stored))), test.found)
		})
	}
}

// wantOne checks that there is one problem with found in it, or none if found is empty.
func wantOne(t *testing.T, problems []string, found string) {
	t.Helper()
	if found == "" && len(problems) > 0 || found != "" && (len(problems) != 1 || !strings.Contains(problems[0], found)) {
		t.Errorf("found %q, want %q", problems, found)
	}
}
