package replacements

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/controller/nodelifecycle"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// withoutEvents refuses events, which upstream's fake client cannot take.
type withoutEvents struct{ kubernetes.Interface }

func (c withoutEvents) CoreV1() typedcore.CoreV1Interface {
	return refusingEvents{c.Interface.CoreV1()}
}

type refusingEvents struct{ typedcore.CoreV1Interface }

func (refusingEvents) RESTClient() rest.Interface {
	return kubernetes.NewForConfigOrDie(&rest.Config{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusForbidden, Body: http.NoBody}, nil
	})}).CoreV1().RESTClient()
}

// After a standstill, upstream's controller gives each node its grace period again. Nobody renews the lease here.
func TestStandstillIsNotTheNodes(t *testing.T) {
	const grace = 50 * time.Second
	for name, still := range map[string]time.Duration{"none": 0, "shorter than the limit": standstill - 2*beatInterval, "long": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				now := metav1.Now()
				renewed := metav1.NowMicro()
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", CreationTimestamp: now}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
					{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: now, LastTransitionTime: now}}}}
				lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n", Namespace: corev1.NamespaceNodeLease}, Spec: coordinationv1.LeaseSpec{RenewTime: &renewed}}
				client := fake.NewClientset(node, lease)
				ctx, cancel := context.WithCancel(t.Context())
				var jump atomic.Int64
				heart := NewHeart(func() time.Time { return time.Now().Add(time.Duration(jump.Load())) })
				go heart.Run(ctx)
				shared := informers.NewSharedInformerFactory(client, 0)
				heart.Renew(shared)
				controller, err := nodelifecycle.NewNodeLifecycleController(ctx, shared.Coordination().V1().Leases(), shared.Core().V1().Pods(),
					shared.Core().V1().Nodes(), shared.Apps().V1().DaemonSets(), withoutEvents{client}, 5*time.Second, time.Minute, grace, 0.1, 0.01, 50, 0.55)
				if err != nil {
					t.Fatal(err)
				}
				shared.StartWithContext(ctx)
				stopped := make(chan struct{})
				go func() { defer close(stopped); controller.Run(ctx) }()
				defer func() { cancel(); <-stopped; shared.Shutdown() }()

				ready := func(after time.Duration) corev1.ConditionStatus {
					t.Helper()
					time.Sleep(time.Until(now.Add(after)))
					n, err := client.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
					if err != nil {
						t.Fatal(err)
					}
					return n.Status.Conditions[0].Status
				}
				if got := ready(40 * time.Second); got != corev1.ConditionTrue {
					t.Fatalf("within the grace period: Ready is %s", got)
				}
				jump.Store(int64(still))
				want := corev1.ConditionUnknown
				if still >= standstill {
					want = corev1.ConditionTrue
				}
				if got := ready(80 * time.Second); got != want {
					t.Errorf("after the grace period: Ready is %s, want %s", got, want)
				}
				if got := ready(120 * time.Second); got != corev1.ConditionUnknown {
					t.Errorf("after two grace periods: Ready is %s, want Unknown: the node is dead", got)
				}
			})
		})
	}
}
