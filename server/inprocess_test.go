package server_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/deviations"
)

// Controllers, scheduler and the API server's own clients are in its process,
// and no exception: each is authenticated as itself, and audited.
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
		config.APIServerArgs = []string{"audit-policy-file=" + policy, "audit-log-path=" + log}
	})
	ns := c.namespace(t)
	create(t, c.AppsV1().Deployments(ns), deployment("web", 1))
	c.wantPods(t, ns, 1)
	if err := c.stop(); err != nil {
		t.Fatal(err)
	}

	type request struct{ user, verb, resource string }
	agents := map[request][]string{} // a component asks under several names
	for _, e := range auditEvents(t, log) {
		if e.ObjectRef == nil || e.SourceIPs[0] != "127.0.0.1" {
			continue
		}
		asked := request{e.User.Username, e.Verb, e.ObjectRef.Resource}
		agents[asked] = append(agents[asked], e.UserAgent)
	}
	const account = "system:serviceaccount:kube-system:"
	for want, agent := range map[request]string{
		{"system:apiserver", "watch", "customresourcedefinitions"}:            "",
		{"system:kube-controller-manager", "watch", "deployments"}:            "shared-informers",
		{"system:kube-scheduler", "watch", "pods"}:                            "scheduler",
		{account + "deployment-controller", "create", "replicasets"}:          account + "deployment-controller",
		{account + "replicaset-controller", "create", "pods"}:                 account + "replicaset-controller",
		{account + "service-account-controller", "create", "serviceaccounts"}: account + "service-account-controller",
	} {
		if !slices.ContainsFunc(agents[want], func(a string) bool { return strings.HasSuffix(a, agent) }) {
			t.Errorf("%v: got agents %q, want one of %q", want, slices.Compact(agents[want]), agent)
		}
	}

	// What they all need of the same is watched once, see shareInformers.
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
			t.Errorf("who watches %s: got %v, want %v", resource, watching, want)
		}
	}
}

func auditEvents(t *testing.T, log string) []auditv1.Event {
	t.Helper()
	content, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
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

// Nothing in the process has a connection to itself that would have to be
// drained: HTTP/2 alone waits a second for the other side of one.
// Informers of the API server have ended when it counts its watches.
func TestStopWithoutClients(t *testing.T) {
	compares(t, deviations.Loopback)
	const tries = 3 // on a machine that is busy with something else
	var took time.Duration
	const few = 8 // of some 24: one may have been on its way
	watches := -1
	for range tries {
		c := start(t, func(c *server.Config) {
			c.Log.Level = logrus.TraceLevel
			c.SettleAfter = time.Hour // the stop does not wait for it
		})
		began := time.Now()
		c.cancel()
		<-c.done
		took = time.Since(began)
		if found := watchesToDrain.FindStringSubmatch(c.log.String()); found != nil {
			watches, _ = strconv.Atoi(found[1])
		}
		if took < time.Second && watches >= 0 && watches < few {
			return
		}
	}
	t.Errorf("the stop took %v and waited for %d watches (the last of %d tries), want less than a second and %d", took, watches, tries, few)
}

// watchesToDrain finds what upstream says of the watches that it lets go of one by one.
var watchesToDrain = regexp.MustCompile(`have drained" activeWatchesAfter=0 activeWatchesBefore=(\d+)`)
