package server_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/insecure"
)

// The clients of the controllers, the scheduler and the API server itself are in the server's
// process. They are no exception: each is authenticated under its own identity, and audited. The log is buffered for longer than the test
// runs, so what is in it at the end was flushed by the stop.
func TestInProcessClientsAreAudited(t *testing.T) {
	compares(t, deviations.Loopback)
	policy := writeFile(t, "policy.yaml", `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
`)
	log := filepath.Join(t.TempDir(), "audit.log")
	c := start(t, func(config *server.Config) {
		config.APIServerArgs = []string{
			"audit-policy-file=" + policy, "audit-log-path=" + log, "audit-log-mode=batch",
			"audit-log-batch-max-wait=1h", "audit-log-batch-max-size=100000", "audit-log-batch-buffer-size=200000",
		}
	})
	plain := clientFor(t, &rest.Config{Host: c.InsecureURL, Dial: insecure.Dial})
	create(t, plain.CoreV1().ConfigMaps("default"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "by-insecure"}})
	ns := c.namespace(t)
	create(t, c.AppsV1().Deployments(ns), deployment("web", 1))
	c.wantPods(t, ns, 1)
	if content, _ := os.ReadFile(log); len(content) > 0 {
		t.Errorf("the log was written before the stop, which then proves nothing: %.300s", content)
	}
	c.down(t)

	type request struct{ user, verb, resource string }
	agents := map[request][]string{} // a component has several user agents
	for _, e := range auditEvents(t, log) {
		if e.ObjectRef == nil || e.SourceIPs[0] != "127.0.0.1" {
			continue
		}
		asked := request{e.User.Username, e.Verb, e.ObjectRef.Resource}
		agents[asked] = append(agents[asked], e.UserAgent)
	}
	const account = "system:serviceaccount:kube-system:"
	for want, agent := range map[request][2]string{
		{"system:apiserver", "watch", "customresourcedefinitions"}:            {"kube-apiserver/", ""},
		{"system:kube-controller-manager", "watch", "deployments"}:            {"kube-controller-manager/", "shared-informers"},
		{"system:unsecured", "create", "configmaps"}:                          {"", ""},
		{"kubernetes-admin", "create", "deployments"}:                         {"", ""},
		{"system:kube-scheduler", "watch", "pods"}:                            {"kube-scheduler/", "scheduler"},
		{account + "deployment-controller", "create", "replicasets"}:          {"kube-controller-manager/", account + "deployment-controller"},
		{account + "replicaset-controller", "create", "pods"}:                 {"kube-controller-manager/", account + "replicaset-controller"},
		{account + "service-account-controller", "create", "serviceaccounts"}: {"kube-controller-manager/", account + "service-account-controller"},
	} {
		if !slices.ContainsFunc(agents[want], func(a string) bool { return strings.HasPrefix(a, agent[0]) && strings.HasSuffix(a, agent[1]) }) {
			t.Errorf("%v: got agents %q, want one of %q", want, slices.Compact(agents[want]), agent)
		}
	}

	// Objects that several of them need are watched only once: see package sharedinformers.
	for resource, want := range map[string][]string{
		"nodes":        {"system:apiserver"},
		"statefulsets": {"system:kube-controller-manager"},
		"pods":         {"system:apiserver", "system:kube-scheduler"},
	} {
		var watching []string
		for asked := range agents {
			if asked.verb == "watch" && asked.resource == resource {
				watching = append(watching, asked.user)
			}
		}
		if slices.Sort(watching); !slices.Equal(watching, want) {
			t.Errorf("watchers of %s: got %v, want %v", resource, watching, want)
		}
	}
}

func auditEvents(t *testing.T, log string) []auditv1.Event {
	t.Helper()
	content, err := os.ReadFile(log)
	fatal(t, err)
	var events []auditv1.Event
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Buffer(nil, 10<<20)
	for lines.Scan() {
		var event auditv1.Event
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		events = append(events, event)
	}
	return events
}
