package logbridge

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/klog/v2"
)

func TestDemotedEventsAreWrittenAtDebug(t *testing.T) {
	l, b := logger(t, "debug")
	install(l, []demotion{row("^known", "it is known"), row("^Unhandled Error: boo", "only boo")})
	defer Stopping(false)
	klog.ErrorS(context.Canceled, "a request")
	check(t, "a request that a client ended", one(t, b), map[string]any{"level": "error", "demoted": nil})
	Stopping(true)
	klog.ErrorS(context.Canceled, "a request")
	check(t, "a request in a stop", one(t, b), map[string]any{"level": "debug", "demoted": atTheStop})
	audit.HandlePluginError("webhook", errors.New("refused"), &auditinternal.Event{})
	check(t, "events that no audit backend has", one(t, b), map[string]any{"level": "error", "demoted": nil})
	Stopping(false)
	klog.Warning("known: harmless")
	check(t, "warning", one(t, b), map[string]any{"level": "debug", "demoted": "it is known"})
	klog.Warning("unknown")
	check(t, "other", one(t, b), map[string]any{"level": "warning", "demoted": nil})
	klog.ErrorS(errors.New("boo!"), "Unhandled Error")
	check(t, "error", one(t, b), map[string]any{"level": "debug", "demoted": "only boo"})
	klog.ErrorS(errors.New("bah!"), "Unhandled Error")
	check(t, "other error", one(t, b), map[string]any{"level": "error"})
	const corrupt = "failed to read one or more services from the storage: StorageError: corrupt object, Code: 7, Key: /registry/services/specs/default/$(x), ResourceVersion: 0, AdditionalErrorMsg: object not "
	klog.ErrorS(errors.New(corrupt+"decodable revision=17: illegal base64 data"), "a cache")
	check(t, "a stored object that is broken", one(t, b), map[string]any{"level": "error",
		"remedy": "its bytes are broken: restore a backup, or delete it: etcdctl --endpoints unix://DATA-DIR/kine.sock del '/registry/services/specs/default/$(x)'"})
	klog.ErrorS(errors.New("data from the storage is not transformable"), "a cache")
	check(t, "one whose key is missing", one(t, b), map[string]any{"level": "error", "remedy": nil})
	l.SetLevel(logrus.InfoLevel)
	klog.Error("known")
	if e := b.take(t); len(e) != 0 {
		t.Errorf("at info: got %v", e)
	}
}

// TestUpstreamHasTheseLines fails when upstream changes a line that is demoted, and when a row is for none of them.
func TestUpstreamHasTheseLines(t *testing.T) {
	const controller, update = "k8s.io/kubernetes/pkg/controller", "Operation cannot be fulfilled on x.apps \"a\": "
	lines := []struct{ in, text, err string }{
		{"k8s.io/apiserver/pkg/server", "Skipping API ", ""},
		{"k8s.io/component-base/metrics", "The manifest file is empty, ignoring.", ""},
		{"k8s.io/kubernetes/pkg/volume/flexvolume", "Flexvolume plugin directory at", ""},
		{"k8s.io/kubernetes/pkg/controlplane/reconcilers", "Resetting endpoints for master service", ""},
		{"k8s.io/kubernetes/pkg/controlplane/controller/kubernetesservice", "Found stale data, removed previous endpoints on kubernetes service", ""},
		{"k8s.io/component-helpers/apimachinery/lease", "Failed to ensure lease exists, will retry", `namespaces "kube-system" not found`},
		{"k8s.io/kubernetes/pkg/controlplane/controller/legacytokentracking", "Error while syncing ConfigMap", `namespaces "kube-system" not found`},
		{controller + "/serviceaccount", "Getting lastest possible tracked_since time", `configmaps "kube-apiserver-legacy-service-account-token-tracking" not found`},
		{controller + "/replicaset", "unable to register metrics", "duplicate metrics collector registration attempted"},
		{"github.com/prometheus/client_golang/prometheus", "duplicate metrics collector registration attempted", ""},
		{"k8s.io/apiserver/pkg/server/dynamiccertificates", "Failed to watch cert and key file, will retry later", "too many open files"},
		{"k8s.io/apiserver/pkg/storage/etcd3", "failed to sync with latest state: ", "context canceled"},
		{"k8s.io/kubernetes/pkg/registry/core/service/portallocator/controller", "is not allocated; repairing", ""},
		{controller + "/garbagecollector", "timed out waiting for dependency graph builder sync", ""},
		{"k8s.io/apiserver/pkg/endpoints/handlers", "Failed to encode watch event", "loopback response body is closed"},
		{"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle", "because it is being terminated", ""},
		{"k8s.io/client-go/tools/record", "Server rejected event (will not retry!)", `namespaces "shop" not found`},
		{controller + "/statefulset", "Error syncing StatefulSet, requeuing", `statefulsets.apps "db" not found`},
		{controller + "/disruption", "Error syncing PodDisruptionBudget, requeuing", `poddisruptionbudgets.policy "web" not found`},
		{controller + "/podgc", "Failed to get node", `node "" not found`}, // of a Pod that is deleted before it has one
		{"k8s.io/kubernetes/pkg/registry/core/pod/storage", "is being deleted, cannot be assigned to a host", ""},
		{"k8s.io/apiserver/pkg/storage/cacher", "Terminating all watchers from cacher ", ""},
		{"k8s.io/client-go/tools/cache", "Failed to watch", "the server could not find the requested resource"},
		{controller + "/util/consistency", "is not as new as written version", ""},
		{"k8s.io/kubernetes/pkg/apis/core/validation", "may specify no more than one CIDR for each IP family", ""},
		{"k8s.io/apiserver/pkg/registry/generic/registry", "the object has been modified", ""},
		{controller + "/volume/pvcprotection", "Error updating Unused condition in PVC status", update + "the object has been modified"},
		{"k8s.io/client-go/tools/leaderelection", "Failed to update lease", "context canceled"},
		{"k8s.io/client-go/tools/leaderelection", "Error retrieving lease lock", "context canceled"},
		{"k8s.io/client-go/tools/leaderelection", "Error initially creating lease lock", "already exists"},
		{"k8s.io/cri-streaming/pkg/streaming/portforward", "error forwarding port ", ""},
		{"k8s.io/kubernetes/pkg/scheduler", "Status after running PostFilter plugins for pod", ""},
	}
	list := exec.Command("go", "list", "-f", "{{.ImportPath}} {{.Dir}}")
	for _, line := range lines {
		list.Args = append(list.Args, line.in)
	}
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	dirs, rows := map[string]string{}, map[string]bool{}
	for found := range strings.Lines(string(out)) {
		in, dir, _ := strings.Cut(strings.TrimSpace(found), " ")
		dirs[in] = dir
	}
	for _, line := range lines {
		if !contains(t, dirs[line.in], line.text) {
			t.Errorf("%s: upstream has no %q any more", line.in, line.text)
		}
		logged := line.text + ": " + line.err
		if whole := inALine[line.text]; whole != "" {
			logged = whole
		}
		for _, d := range demotions {
			rows[d.reason] = rows[d.reason] || d.line.MatchString(logged)
		}
	}
	for _, d := range demotions {
		if !rows[d.reason] {
			t.Errorf("%v is for no line of upstream's", d.line)
		}
	}
}

// inALine has a whole line with a part that upstream's source has.
var inALine = map[string]string{
	"is not allocated; repairing":                          `Unhandled Error: the cluster IP 10.43.0.1 for service kubernetes is not allocated; repairing`,
	"timed out waiting for dependency graph builder sync":  "Unhandled Error: timed out waiting for dependency graph builder sync",
	"because it is being terminated":                       `pods "a" is forbidden: unable to create new content in namespace shop because it is being terminated`,
	"the object has been modified":                         `Unhandled Error: Operation cannot be fulfilled on x.apps "a": the object has been modified`,
	"error forwarding port ":                               "Unhandled Error: error forwarding port 80 to pod default/web, uid : simulated: nothing listens",
	"may specify no more than one CIDR for each IP family": `failed to patch node CIDR: Node "n" is invalid: []: may specify no more than one CIDR for each IP family`,
}

// contains reports whether a Go file of a directory has a text.
func contains(t *testing.T, dir, text string) bool {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		source, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(source), text)
	})
}

// Lines whose words are in several places of upstream's source, from servers in which namespaces were deleted at random times.
func TestDeletionsAreDemoted(t *testing.T) {
	const unhandled = "Unhandled Error"
	for _, line := range []struct{ message, err, of string }{
		{"Error syncing StatefulSet, requeuing", `failed to create PVC data-db-0: persistentvolumeclaims "data-db-0" is forbidden: unable to create new content in namespace shop because it is being terminated`, ""},
		{"Error syncing StatefulSet, requeuing", "pvc data-db-1 is being deleted", ""},
		{"Error updating Unused condition in PVC status", `persistentvolumeclaims "data-db-4" not found`, ""},
		{"Error processing resource quota work item", `resourcequotas "quota" not found`, ""},
		{"Plugin Failed", `Operation cannot be fulfilled on pods/binding "web-1": pod web-1 is being deleted, cannot be assigned to a host`, ""},
		{"Error scheduling pod; retrying", `running Bind plugin "DefaultBinder": pods "web-1" not found`, ""},
		{unhandled, `sync "shop/web-584b9f7f87" failed with replicasets.apps "web-584b9f7f87" not found`, ""},
		{unhandled, `syncing job: tracking status: adding uncounted pods to status: jobs.batch "job" not found`, ""},
		{unhandled, `failed to rescale Deployment/shop/web: deployments.apps "web" not found`, ""},
		{unhandled, `shop/ds failed with : error storing status for daemon set &v1.DaemonSet{TypeMeta:v1.TypeMeta{Kind:""}}: daemonsets.apps "ds" not found`, ""},
		{unhandled, `failed to update status for web: horizontalpodautoscalers.autoscaling "web" not found`, ""},
		{"Failed to watch", "failed to list *v1.PartialObjectMetadata: the server could not find the requested resource", "*v1.PartialObjectMetadata"},
	} {
		if _, ok := demoted(demotions, line.message, line.err, logrus.Fields{"type": line.of}); !ok {
			t.Errorf("not demoted: %s: %s", line.message, line.err)
		}
	}
}

// Errors that a user can act on look similar to those above.
func TestRealErrorsAreNotDemoted(t *testing.T) {
	const unhandled = "Unhandled Error"
	for _, line := range []struct{ message, err string }{
		{unhandled, `kube-system/extension-apiserver-authentication failed with : Put "https://[::1]:42251/api/v1": dial tcp [::1]:42251: connect: connection refused`},
		{unhandled, `sync "shop/web-584b9f7f87" failed with pods "web-584b9f7f87-" is forbidden: error looking up service account shop/web: serviceaccount "web" not found`},
		{unhandled, `sync "shop/web-584b9f7f87" failed with pods "web-584b9f7f87-x" is forbidden: exceeded quota: quota, requested: pods=1, used: pods=10, limited: pods=10`},
		{unhandled, `sync "shop/web-584b9f7f87" failed with Internal error occurred: failed calling webhook "validate.example.com": no endpoints available for service "hook"`},
		{unhandled, `shop/ds failed with : pods "ds-" is forbidden: violates PodSecurity "restricted:latest"`},
		{unhandled, `failed to compute desired number of replicas based on listed metrics for Deployment/shop/web: unable to get metrics for resource cpu: no metrics returned from resource metrics API`},
		{"Error syncing StatefulSet, requeuing", `pods "db-0" is forbidden: error looking up service account shop/db: serviceaccount "db" not found`},
		{"Error processing resource quota work item", "etcdserver: mvcc: database space exceeded"},
		{"Error scheduling pod; retrying", bindError},
		{"Status after running PostFilter plugins for pod", ""},
		{"failed to sync with latest state: rpc error: code = Unavailable desc = datastore postgres://u@h/db: connection refused", ""},
		{"Failed to watch", "failed to list *v1.Pod: the server could not find the requested resource"},
		// Of a server that does not stop.
		{"Unable to record event (will not retry!)", "broadcaster already stopped"},
		{"Unable to sync caches", ""},
		{"Timed out waiting for quota monitor sync", ""},
		{unhandled, "timed out waiting for caches to sync"},
		{"Server rejected event (will not retry!)", `events is forbidden: User "system:serviceaccount:shop:web" cannot create resource "events"`},
		{"Error scheduling pod; retrying", `persistentvolumeclaim "data" not found`},
		{unhandled, `admission webhook "policy.example.com" denied the request: no`},
		{"Deletion of namespace failed", `unable to retrieve the complete list of server APIs: metrics.k8s.io/v1beta1: stale GroupVersion discovery`},
	} {
		if reason, ok := demoted(demotions, line.message, line.err, logrus.Fields{"status": "no space left on device"}); ok {
			t.Errorf("demoted (%s): %s: %s", reason, line.message, line.err)
		}
	}
}

// The informers of all objects' metadata fail for many reasons. Only the end of a type is one of a healthy
// life.
func TestOtherFailuresToWatchMetadataAreNotDemoted(t *testing.T) {
	for _, err := range []string{
		"failed to list *v1.PartialObjectMetadata: the server is currently unable to handle the request",
		"failed to list *v1.PartialObjectMetadata: conversion webhook for example.com/v1, Kind=Widget failed",
		"unable to decode an event from the watch stream: illegal base64 data",
	} {
		if reason, ok := demoted(demotions, "Failed to watch", err, logrus.Fields{"type": "*v1.PartialObjectMetadata"}); ok {
			t.Errorf("demoted (%s): %s", reason, err)
		}
	}
}

const bindError = `running Bind plugin "DefaultBinder": pods "web-1" is forbidden: User "system:kube-scheduler" cannot create resource "pods/binding"`
