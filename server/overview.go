package server

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/internal/memory"
	"github.com/karve-k8s/karve/internal/version"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/certificates"
	"github.com/karve-k8s/karve/server/lifecycle"
	"github.com/karve-k8s/karve/server/manifests"
	"github.com/karve-k8s/karve/server/page"
	"github.com/karve-k8s/karve/server/storage"
	"github.com/karve-k8s/karve/simulate"
)

// What the page shows at most, and how long it may wait for Events.
const (
	mostNodes  = 100
	mostEvents = 12
	eventsRead = 500
	lookLimit  = 5 * time.Second
)

// overview collects what the page shows, when the API server serves.
type overview struct {
	*plan
	start     *lifecycle.Start
	claim     *claim
	hour      *page.Hour
	manifests *manifests.Manifests
	storage   *storage.Storage
	api       *apiserver.Part
	client    func() *rest.Config // an administrator's
}

// look collects what the page shows. It asks the parts that `karve status` asks, and reads the same files.
func (o *overview) look(ctx context.Context) *page.View {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	host, _ := os.Hostname()
	v := &page.View{
		Now: time.Now(), Began: o.start.Began(), Version: version.Full(), Kubernetes: version.Kubernetes,
		Host: cmp.Or(host, "this machine"), URL: o.claim.url(), DataDir: o.DataDir,
		Hour: o.hour.Last(), Memory: memory.Anonymous(os.Getpid()), Limit: debug.SetMemoryLimit(-1),
		Schedule: o.BackupSchedule, Manifests: o.manifests.Status(),
	}
	if v.Limit > 1<<62 { // that is no limit
		v.Limit = 0
	}
	o.lookAtState(ctx, v)
	o.lookAtDatastore(v)
	if all, err := certs.List(certificates.Dir(o.DataDir), v.Now); err == nil {
		v.Certificates = all
	}
	o.lookAtNodes(v)
	if err := o.lookAtEvents(ctx, v); err != nil {
		v.EventsError = err.Error()
	}
	return v
}

func (o *overview) lookAtState(ctx context.Context, v *page.View) {
	for _, span := range o.start.Parts() {
		p := page.Part{Name: span.Part, Begin: span.Start, Took: span.Took}
		if err := o.start.Reason(span.Part); err != nil {
			p.Problem = err.Error()
		}
		v.Parts = append(v.Parts, p)
	}
	v.State, v.Since = page.Starting, o.start.Began()
	switch at, starting := o.start.At(); {
	case o.start.IsStopping():
		v.State = page.Stopping
	case !o.start.IsReady():
		if starting {
			v.Problem = "It waits for the " + at.Part + "."
		}
		if slices.ContainsFunc(v.Parts, func(p page.Part) bool { return p.Problem != "" }) {
			v.State = page.NotReady
		}
	default:
		v.State, v.Since = page.Ready, *o.start.ReadyAt()
		v.Took = v.Since.Sub(o.start.Began())
		if failing := o.api.Server().Failing(ctx); len(failing) > 0 {
			v.State, v.Problem = page.NotReady, "Failed checks: "+strings.Join(failing, ", ")+"."
		}
	}
}

func (o *overview) lookAtDatastore(v *page.View) {
	engine := o.storage.Connection().Engine
	if engine == nil {
		v.Elsewhere = "It is not the built-in one: see its own tools."
		return
	}
	stats := engine.Stats()
	v.Keys, v.Full = stats.Keys, stats.NoSpace
	if info, err := engine.Info(); err != nil {
		v.Elsewhere = err.Error()
	} else {
		v.Datastore = info
	}
	v.Backup, _ = backup.Last(engine.Path())
	v.BackupFailure, _ = backup.LastFailure(engine.Path())
}

// lookAtNodes reads what informers of this process know, so it costs the API nothing.
func (o *overview) lookAtNodes(v *page.View) {
	core := o.api.Server().Informers().Core().V1()
	if !core.Nodes().Informer().HasSynced() || !core.Pods().Informer().HasSynced() {
		v.NodesUnknown = "this server does not follow nodes and Pods, or not yet"
		return
	}
	nodes, _ := core.Nodes().Lister().List(labels.Everything())
	pods, _ := core.Pods().Lister().List(labels.Everything())
	of := map[string]*page.Node{}
	for _, n := range nodes {
		node := &page.Node{Name: n.Name, Kubelet: n.Status.NodeInfo.KubeletVersion, Problem: "the kubelet has not reported yet"}
		_, node.Simulated = n.Labels[simulate.NodeLabel]
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				node.Ready, node.Problem = c.Status == corev1.ConditionTrue, c.Message
			}
		}
		of[n.Name] = node
	}
	for _, p := range pods {
		node := of[p.Spec.NodeName]
		switch {
		case p.Spec.NodeName == "" && p.DeletionTimestamp == nil:
			v.Waiting++
		case node == nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		case p.Status.Phase == corev1.PodRunning:
			node.Running++
			fallthrough
		default:
			node.Pods++
		}
	}
	for _, n := range of {
		v.Nodes = append(v.Nodes, *n)
	}
	slices.SortFunc(v.Nodes, func(a, b page.Node) int {
		if a.Ready != b.Ready { // those that need attention first
			return cmp.Compare(map[bool]int{true: 1}[a.Ready], map[bool]int{true: 1}[b.Ready])
		}
		return cmp.Compare(a.Name, b.Name)
	})
	v.MoreNodes = max(0, len(v.Nodes)-mostNodes)
	v.Nodes = v.Nodes[:len(v.Nodes)-v.MoreNodes]
}

// lookAtEvents lists the newest Events of type Warning.
func (o *overview) lookAtEvents(ctx context.Context, v *page.View) error {
	clients, err := kubernetes.NewForConfig(o.client())
	if err != nil {
		return err
	}
	all, err := clients.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning, Limit: eventsRead})
	if err != nil {
		return err
	}
	for _, e := range all.Items {
		at := latest(e.LastTimestamp.Time, e.EventTime.Time, e.CreationTimestamp.Time)
		count := e.Count
		if e.Series != nil {
			at, count = latest(at, e.Series.LastObservedTime.Time), e.Series.Count
		}
		object := fmt.Sprintf("%s %s", e.InvolvedObject.Kind, e.InvolvedObject.Name)
		if e.InvolvedObject.Namespace != "" {
			object += " in " + e.InvolvedObject.Namespace
		}
		v.Events = append(v.Events, page.Event{At: at, Object: object, Reason: e.Reason, Message: e.Message, Count: count})
	}
	slices.SortStableFunc(v.Events, func(a, b page.Event) int { return b.At.Compare(a.At) })
	v.MoreEvents = max(0, len(v.Events)-mostEvents)
	v.Events = v.Events[:min(len(v.Events), mostEvents)]
	return nil
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }
