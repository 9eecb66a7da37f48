package durability

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/karve-k8s/karve/internal/eventually"
)

func TestTwoLeaders(t *testing.T) {
	// In the order in which a watch that was lost and listed again may give them.
	tenures := []Tenure{
		{ControllersLease, "a", 10}, {ControllersLease, "a", 20}, {ControllersLease, "b", 30}, {ControllersLease, "", 50}, {ControllersLease, "a", 40},
		{SchedulerLease, "b", 10},
	}
	for _, c := range []struct {
		lease, holder string
		revision      int64
		want          string
	}{
		{ControllersLease, "a", 9, "names nobody since revision 0"},
		{ControllersLease, "a", 10, ""},
		{ControllersLease, "a", 29, ""},
		{ControllersLease, "b", 29, "names a since revision 20"},
		{ControllersLease, "a", 31, "names b since revision 30"},
		{ControllersLease, "b", 39, ""},
		{ControllersLease, "a", 41, ""},
		{ControllersLease, "a", 51, "names nobody since revision 50"},
		{ControllersLease, "", 51, "names nobody since revision 50"},
		{SchedulerLease, "a", 15, "the lease kube-scheduler names b"},
		{SchedulerLease, "b", 35, ""},
		{"other", "b", 35, "names nobody"},
	} {
		act := Act{c.lease, c.holder, "create pods x", c.revision}
		problems := TwoLeaders(tenures, []Act{act})
		if c.want == "" && len(problems) > 0 {
			t.Errorf("%+v: %v", act, problems)
		} else if c.want != "" && (len(problems) != 1 || !strings.Contains(problems[0].Error(), c.want)) {
			t.Errorf("%+v: got %v, want one problem with %q", act, problems, c.want)
		}
	}
}

// An auditLog writes what a server records. The nth event is received at n seconds and answered half a
// second later.
type auditLog struct {
	strings.Builder
	lines int
}

const aPod = `{"kind":"Pod","metadata":{"name":"web","uid":"u1","resourceVersion":"%d"}}`

// line writes an event of the controllers, with these changes.
func (l *auditLog) line(changes map[string]any) {
	l.lines++
	at := func(d time.Duration) string {
		return time.Unix(int64(l.lines), 0).Add(d).UTC().Format("2006-01-02T15:04:05.000000Z")
	}
	event := map[string]any{
		"user": map[string]any{"username": "system:serviceaccount:kube-system:replicaset-controller"}, "userAgent": "kube-controller-manager/v1 (linux/amd64) kubernetes/x/controller",
		"verb": "create", "objectRef": map[string]any{"resource": "pods", "namespace": "default", "name": "web"},
		"requestReceivedTimestamp": at(0), "stageTimestamp": at(500 * time.Millisecond), "responseStatus": map[string]any{"code": 201},
	}
	for k, v := range changes {
		event[k] = v
	}
	text, err := json.Marshal(event)
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(l, "%s\n", text)
}

func user(name string) map[string]any { return map[string]any{"username": name} }

// elected writes that the server takes or renews the controllers' lease.
func (l *auditLog) elected(identity string, revision int64) {
	l.line(map[string]any{
		"user": user("system:kube-controller-manager"), "userAgent": "kube-controller-manager/v1 (linux/amd64) kubernetes/x/leader-election", "verb": "update",
		"objectRef":      map[string]any{"resource": "leases", "namespace": "kube-system", "name": ControllersLease},
		"requestObject":  map[string]any{"spec": map[string]any{"holderIdentity": identity}},
		"responseObject": map[string]any{"kind": "Lease", "metadata": map[string]any{"resourceVersion": fmt.Sprint(revision)}},
	})
}

func pod(revision int64) json.RawMessage { return json.RawMessage(fmt.Sprintf(aPod, revision)) }

// A fakeServer answers the lists and watches of a Fencer.
func fakeServer(t *testing.T, events map[string][]string) *API {
	const pods, leases = "/api/v1/pods", "/apis/coordination.k8s.io/v1/leases"
	answers := map[string]string{
		"/apis":                        `{"groups":[{"preferredVersion":{"groupVersion":"coordination.k8s.io/v1"}}]}`,
		"/api/v1":                      `{"resources":[{"name":"pods","verbs":["list","watch"]},{"name":"events","verbs":["list","watch"]},{"name":"bindings","verbs":["create"]}]}`,
		"/apis/coordination.k8s.io/v1": `{"resources":[{"name":"leases","verbs":["list","watch"]}]}`,
		pods:                           `{"metadata":{"resourceVersion":"5"}}`,
		leases:                         `{"metadata":{"resourceVersion":"5"}}`,
		"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases": `{"metadata":{"resourceVersion":"50"},"items":[` + strings.TrimSuffix(strings.SplitN(events[leases][len(events[leases])-1], `"object":`, 2)[1], "}") + `]}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			fmt.Fprint(w, answers[r.URL.Path])
			return
		}
		if r.URL.Query().Get("resourceVersion") == "5" {
			for _, e := range events[r.URL.Path] {
				fmt.Fprintln(w, e)
			}
			return
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	return &API{URL: server.URL, HTTP: server.Client()}
}

func lease(holder string, revision int64) string {
	return fmt.Sprintf(`{"type":"MODIFIED","object":{"metadata":{"namespace":"kube-system","name":"kube-controller-manager","uid":"l","resourceVersion":"%d"},"spec":{"holderIdentity":%q}}}`, revision, holder)
}

// Every kind of evidence shows a server that acts after another one has the lease: a revision in an
// answer, a deletion, a binding, and what was created by a write that had no answer.
func TestFencerNotices(t *testing.T) {
	event := func(kind, more string, revision int64) string {
		return fmt.Sprintf(`{"type":%q,"object":{"metadata":{"namespace":"default","name":"web","uid":"u1","resourceVersion":"%d"%s}}}`, kind, revision, more)
	}
	const owned = `,"ownerReferences":[{"controller":true}],"managedFields":[{"manager":"kube-controller-manager"}]`
	deleted := json.RawMessage(`{"kind":"Status","metadata":{},"details":{"uid":"u1"}}`)
	for name, c := range map[string]struct {
		pods func(revision int64) []string
		acts func(l *auditLog, revision int64)
	}{
		"answer": {acts: func(l *auditLog, revision int64) { l.line(map[string]any{"responseObject": pod(revision)}) }},
		"deletion": {
			pods: func(revision int64) []string { return []string{event("ADDED", "", 12), event("DELETED", "", revision)} },
			acts: func(l *auditLog, _ int64) { l.line(map[string]any{"verb": "delete", "responseObject": deleted}) },
		},
		"creation": {
			pods: func(revision int64) []string { return []string{event("ADDED", owned, revision)} },
			acts: func(l *auditLog, _ int64) { l.line(map[string]any{"responseStatus": map[string]any{"code": 504}}) },
		},
		"binding": {
			pods: func(revision int64) []string {
				return []string{event("ADDED", "", 12), strings.Replace(event("MODIFIED", "", revision), "}}}", `},"spec":{"nodeName":"n"}}}`, 1)}
			},
			acts: func(l *auditLog, _ int64) {
				l.line(map[string]any{
					"objectRef":     map[string]any{"resource": "pods", "subresource": "binding", "name": "web"},
					"requestObject": json.RawMessage(`{"metadata":{"uid":"u1"}}`), "responseObject": json.RawMessage(`{"kind":"Status","metadata":{}}`),
				})
			},
		},
	} {
		for revision, bad := range map[int64]bool{19: false, 21: true} {
			t.Run(fmt.Sprintf("%s at %d", name, revision), func(t *testing.T) {
				var l auditLog
				l.elected("a", 10)
				c.acts(&l, revision)
				file := filepath.Join(t.TempDir(), "audit.log")
				if err := os.WriteFile(file, []byte(l.String()), 0o600); err != nil {
					t.Fatal(err)
				}
				next := "b"
				if name == "creation" {
					next = "" // it is noticed while nobody leads
				}
				events := map[string][]string{"/apis/coordination.k8s.io/v1/leases": {lease("a", 10), lease(next, 20), lease("b", 30)}}
				if c.pods != nil {
					events["/api/v1/pods"] = c.pods(revision)
				}
				api := fakeServer(t, events)
				f, err := NewFencer(t.Context(), func() []*API { return []*API{api} })
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if name == "creation" { // nothing else waits for its event
					eventually.True(t, "the creation is seen", func() bool {
						f.mu.Lock()
						defer f.mu.Unlock()
						return len(f.created) > 0
					})
				}
				checked, err := f.Check(ctx, api, []string{file})
				if bad && (err == nil || !strings.Contains(err.Error(), "revision 21: a: ") || !strings.Contains(err.Error(), "names "+cmp.Or(next, "nobody")+" since revision 20")) {
					t.Errorf("got %v, want that a acted without the lease", err)
				} else if !bad && err != nil {
					t.Error(err)
				}
				if checked != nil && checked.Terms != 2 {
					t.Errorf("got %+v, want two terms", checked)
				}
			})
		}
	}
}
