package replacements

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/controller-manager/pkg/clientbuilder"
)

// nodeController is the name for which the node IPAM controller asks a client (newNodeIpamController in upstream's
// cmd/kube-controller-manager/app/core.go). The node lifecycle controller uses the same name.
const nodeController = "node-controller"

// RangeBuilder gives the node IPAM controller a client whose patches wait for its informer. Without that, the
// controller handles a Node that changes right after its creation before the informer has seen the range that was just
// written, and takes another one for it.
type RangeBuilder struct {
	clientbuilder.ControllerClientBuilder
	Nodes corelisters.NodeLister // of the controller's informer
}

func (b RangeBuilder) Client(name string) (kubernetes.Interface, error) {
	client, err := b.ControllerClientBuilder.Client(name)
	if err != nil || name != nodeController {
		return client, err
	}
	return rangeClient{client, b.Nodes}, nil
}

type rangeClient struct {
	kubernetes.Interface
	nodes corelisters.NodeLister
}

func (c rangeClient) CoreV1() typedcore.CoreV1Interface {
	return rangeCore{c.Interface.CoreV1(), c.nodes}
}

type rangeCore struct {
	typedcore.CoreV1Interface
	nodes corelisters.NodeLister
}

func (c rangeCore) Nodes() typedcore.NodeInterface {
	return rangeNodes{c.CoreV1Interface.Nodes(), c.nodes}
}

type rangeNodes struct {
	typedcore.NodeInterface
	nodes corelisters.NodeLister
}

// patience limits the wait for an informer that has lost its watch. The controller then goes on as upstream's.
const patience = 10 * time.Second

// Patch returns when the informer has the Node with a range, if the patched Node has one.
func (n rangeNodes) Patch(ctx context.Context, name string, kind types.PatchType, data []byte, o metav1.PatchOptions, subresources ...string) (*corev1.Node, error) {
	patched, err := n.NodeInterface.Patch(ctx, name, kind, data, o, subresources...)
	if err != nil || len(patched.Spec.PodCIDRs) == 0 {
		return patched, err
	}
	// Its error would say that the informer is late. The patch has succeeded.
	_ = wait.PollUntilContextTimeout(ctx, time.Millisecond, patience, true, func(context.Context) (bool, error) {
		seen, err := n.nodes.Get(name)
		return err != nil || len(seen.Spec.PodCIDRs) > 0, nil
	})
	return patched, nil
}
