package durability

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
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
		graces        []Grace
		want          string
	}{
		{ControllersLease, "a", 9, nil, "names nobody since revision 0"},
		{ControllersLease, "a", 10, nil, ""},
		{ControllersLease, "a", 29, nil, ""},
		{ControllersLease, "b", 29, nil, "names a since revision 20"},
		{ControllersLease, "a", 31, nil, "names b since revision 30"},
		{ControllersLease, "b", 39, nil, ""},
		{ControllersLease, "a", 41, nil, ""},
		{ControllersLease, "a", 51, nil, "names nobody since revision 50"},
		{ControllersLease, "", 51, nil, "names nobody since revision 50"},
		{SchedulerLease, "a", 15, nil, "the lease kube-scheduler names b"},
		{SchedulerLease, "b", 35, nil, ""},
		{"other", "b", 35, nil, "names nobody"},
		{ControllersLease, "a", 31, []Grace{{ControllersLease, "a", 30, 31}}, ""},
		{ControllersLease, "a", 32, []Grace{{ControllersLease, "a", 30, 31}}, "names b"},
		{ControllersLease, "a", 31, []Grace{{SchedulerLease, "a", 30, 31}, {ControllersLease, "b", 30, 31}}, "names b"},
	} {
		act := Act{c.lease, c.holder, "create pods x", c.revision}
		problems := TwoLeaders(tenures, []Act{act}, c.graces...)
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

func TestReadAudit(t *testing.T) {
	status := json.RawMessage(`{"kind":"Status","metadata":{},"details":{"uid":"u1"}}`)
	var l auditLog
	l.elected("a_1", 10)
	l.line(map[string]any{"responseObject": pod(11)})
	l.line(map[string]any{"responseObject": pod(11), "verb": "patch"})                                          // changed nothing
	l.line(map[string]any{"responseObject": status, "verb": "delete"})                                          // has no revision
	l.line(map[string]any{"responseObject": pod(14), "verb": "delete"})                                         // deleted later
	l.line(map[string]any{"responseObject": pod(15), "user": user("kubernetes-admin")})                         // a user's
	l.line(map[string]any{"responseObject": pod(16), "user": user("system:apiserver")})                         // every server's
	l.line(map[string]any{"responseObject": pod(17), "user": user("system:serviceaccount:default:controller")}) // another program's
	l.line(map[string]any{"responseObject": status, "responseStatus": map[string]any{"code": 409}})             // refused
	l.line(map[string]any{"responseObject": status, "responseStatus": map[string]any{"code": 504}})             // may be carried out
	l.line(map[string]any{"responseObject": pod(18), "user": user("kubernetes-admin"), "userAgent": "kube-controller-manager/v1/simulated-kubelet", "verb": "update"})
	l.line(map[string]any{"responseObject": status, "verb": "deletecollection"})
	l.line(map[string]any{"responseObject": json.RawMessage(`{"kind":"Pod","metadata":{"uid":"u1"}}`), "verb": "delete"})
	l.line(map[string]any{
		"user": user("system:kube-scheduler"), "objectRef": map[string]any{"resource": "pods", "subresource": "binding", "name": "web"},
		"requestObject": json.RawMessage(`{"metadata":{"uid":"u2"}}`), "responseObject": json.RawMessage(`{"kind":"Status","metadata":{}}`),
	})
	l.elected("", 19)
	l.WriteString(`{"verb":"cre`)
	audit, err := ReadAudit(strings.NewReader(l.String()))
	if err != nil {
		t.Fatal(err)
	}
	if audit.Identity != "a_1" || len(audit.Unknown) != 1 {
		t.Errorf("got %+v", audit)
	}
	var got []string
	for _, a := range audit.Acts {
		verb, _, _ := strings.Cut(a.What, " ")
		got = append(got, fmt.Sprintf("%s %s %s %d %s%s", a.Holder, a.Lease, verb, a.Revision, a.Deleted, a.Bound))
	}
	want := []string{
		"a_1 kube-controller-manager create 11 ", "a_1 kube-controller-manager delete 0 u1", "a_1 kube-controller-manager delete 14 ",
		"a_1 kube-controller-manager update 18 ", "a_1 kube-scheduler create 0 u2",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestReadAuditRefuses(t *testing.T) {
	for want, write := range map[string]func(*auditLog){
		"never had a lease": func(l *auditLog) { l.line(map[string]any{"responseObject": pod(11)}) },
		"no revision":       func(l *auditLog) { l.elected("a", 1); l.line(map[string]any{"responseObject": nil}) },
		"as a and as b":     func(l *auditLog) { l.elected("a", 1); l.elected("b", 2) },
		"line 2":            func(l *auditLog) { l.elected("a", 1); l.WriteString("{\n") },
	} {
		var l auditLog
		write(&l)
		if _, err := ReadAudit(strings.NewReader(l.String())); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

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

// A server that has just started does not know what was before. The history is lost only if no other server knows it.
func TestFencerAsksEachServerForTheHistory(t *testing.T) {
	events := map[string][]string{"/apis/coordination.k8s.io/v1/leases": {lease("a", 10), lease("b", 20), lease("b", 30)}}
	old := fakeServer(t, events)
	gone := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			http.Error(w, "too old", http.StatusGone)
			return
		}
		fmt.Fprint(w, `{"metadata":{"resourceVersion":"40"}}`)
	}))
	defer gone.Close()
	fresh := &API{URL: gone.URL, HTTP: gone.Client()}
	for _, c := range []struct {
		servers []*API
		lost    bool
	}{
		{[]*API{fresh, old}, false},
		{[]*API{fresh, fresh}, true},
	} {
		begun := false
		f, err := NewFencer(t.Context(), func() []*API {
			if !begun {
				begun = true
				return []*API{old}
			}
			return c.servers
		})
		if err != nil {
			t.Fatal(err)
		}
		eventually.True(t, "the leases are seen, or not", func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.leases[ControllersLease] == 30 || len(f.problems) > 0
		})
		f.Close()
		if err := errors.Join(f.problems...); (err != nil) != c.lost {
			t.Errorf("got %v, want it to be lost: %t", err, c.lost)
		}
	}
}

// While the cache of a type is not there yet, a server says so, and clients ask again.
func TestReadsAreSentAgain(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked%3 != 0 {
			http.Error(w, "storage is (re)initializing", http.StatusTooManyRequests)
			return
		}
		if r.URL.Query().Get("watch") == "" {
			fmt.Fprint(w, `{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}}]}`)
			return
		}
		fmt.Fprintln(w, lease("a", 8))
	}))
	defer server.Close()
	api := &API{URL: server.URL, HTTP: server.Client()}
	list, revision, err := api.List(t.Context(), "/api/v1/nodes", "")
	if err != nil || revision != 7 || len(list) != 1 {
		t.Errorf("got %v at %d, %v", list, revision, err)
	}
	seen := 0
	if err := api.Watch(t.Context(), "/api/v1/nodes", revision, func(Event) error { seen++; return nil }); err != nil || seen != 1 {
		t.Errorf("got %d events, %v", seen, err)
	}
}
