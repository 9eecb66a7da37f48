package replacements

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/controller-manager/pkg/clientbuilder"
)

// late is an informer that sees a patch when it was asked a few times.
type late struct {
	corelisters.NodeLister
	asked int
	gone  bool
}

func (l *late) Get(name string) (*corev1.Node, error) {
	l.asked++
	if l.gone {
		return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if l.asked >= 4 {
		node.Spec.PodCIDRs = []string{"10.244.3.0/24"}
	}
	return node, nil
}

type fakeBuilder struct {
	clientbuilder.ControllerClientBuilder
	client kubernetes.Interface
}

func (b fakeBuilder) Client(string) (kubernetes.Interface, error) { return b.client, nil }

// The node IPAM controller handles a Node again only when its informer has the range that it wrote.
func TestRangeIsSeenBeforeTheNodeIsHandledAgain(t *testing.T) {
	const assign = `{"spec":{"podCIDR":"10.244.3.0/24","podCIDRs":["10.244.3.0/24"]}}`
	for name, c := range map[string]struct {
		client, patch string
		gone          bool
		asked         int
	}{
		"a range":                          {nodeController, assign, false, 4},
		"a Node that was deleted":          {nodeController, assign, true, 1},
		"a Node without a range":           {nodeController, `{"spec":{"unschedulable":true}}`, false, 0},
		"the client of another controller": {"ttl-controller", assign, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := &late{gone: c.gone}
			core := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
			client, err := RangeBuilder{fakeBuilder{client: core}, nodes}.Client(c.client)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.CoreV1().Nodes().Patch(t.Context(), "a", types.StrategicMergePatchType, []byte(c.patch), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			if nodes.asked != c.asked {
				t.Errorf("asked the informer %d times, want %d", nodes.asked, c.asked)
			}
		})
	}
}
