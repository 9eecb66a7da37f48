package ask

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	nodeutil "k8s.io/component-helpers/node/util"
	"sigs.k8s.io/yaml"

	"github.com/karve-k8s/karve/bootstrap/kubeadm"
	"github.com/karve-k8s/karve/nodes/tunnels"
)

// Cluster is what a token may learn about a cluster.
type Cluster struct {
	Server  string
	CA      []byte               // the authorities of cluster-info for which a pinned one vouches: PEM
	Client  kubernetes.Interface // with the token
	Version *utilversion.Version
	// Kubelet is the KubeletConfiguration of the ConfigMap kubelet-config.
	Kubelet map[string]any
	// PodSubnet is the range of all Pods, as kubeadm-config has it. The cluster gives each node a part of it,
	// unless that is switched off, which nothing in the cluster tells. Empty: it gives none.
	PodSubnet string
}

// notPrepared is the remedy if one of kubeadm's objects is missing.
const notPrepared = "upgrade the server with install.sh: newer versions prepare the cluster for nodes"

// read asks for everything that a join needs, and whether the token may join.
func (c *Cluster) read(ctx context.Context) error {
	v, err := c.Client.Discovery().ServerVersion()
	if err != nil {
		return Explain(c.Server, err)
	}
	if c.Version, err = utilversion.ParseSemantic(v.GitVersion); err != nil {
		return fmt.Errorf("%s has the version %q: %w", c.Server, v.GitVersion, err)
	}
	for _, subresource := range []string{"", "nodeclient"} { // to ask, and to be answered
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: "certificates.k8s.io", Resource: "certificatesigningrequests", Subresource: subresource, Verb: "create"},
		}}
		answer, err := c.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		switch {
		case apierrors.IsUnauthorized(err):
			return fmt.Errorf("--token: %s does not accept it for authentication: it has just expired, or was made without the usage \"authentication\": make a new one with `karve token create --print-install-command`", c.Server)
		case err != nil:
			return fmt.Errorf("ask %s what the token may do: %w", c.Server, err)
		case !answer.Status.Allowed:
			return fmt.Errorf("--token: it may not create certificatesigningrequests/%s: the ClusterRoleBindings of kubeadm for nodes are missing, or the token lacks the group system:bootstrappers:kubeadm:default-node-token: %s", subresource, notPrepared)
		}
	}
	if c.Kubelet, err = KubeletConfig(ctx, c.Client, c.Server); err != nil {
		return err
	}
	networking, _ := kubeadm.Networking(ctx, c.Client) // a cluster need not have it
	c.PodSubnet = networking.PodSubnet
	return nil
}

// KubeletConfig reads the KubeletConfiguration of the ConfigMap kubelet-config.
func KubeletConfig(ctx context.Context, client kubernetes.Interface, server string) (map[string]any, error) {
	config, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "kubelet-config", metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: the ConfigMap kubelet-config in kube-system cannot be read (%w): %s", server, err, notPrepared)
	}
	var kubelet map[string]any
	if err := yaml.Unmarshal([]byte(config.Data["kubelet"]), &kubelet); err != nil || kubelet == nil {
		return nil, fmt.Errorf("%s: the ConfigMap kubelet-config in kube-system has no KubeletConfiguration under the key kubelet (%v): repair it", server, err)
	}
	return kubelet, nil
}

// Free fails if a Node of that name is another machine's. id is this machine's, and here tells whether an address is one of its own.
func (c *Cluster) Free(ctx context.Context, name, id string, here func(address string) bool) error {
	n, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("%s: whether there is a node %s cannot be read (%w): %s", c.Server, name, err, notPrepared)
	}
	// Copies of one SD card have the same machine-id. A node that is alive, while no kubelet
	// runs here, is another machine unless it has an address of this one.
	if id != "" && id == n.Status.NodeInfo.MachineID &&
		(!Alive(n) || slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool { return here(a.Address) })) {
		return nil
	}
	where := "of another machine"
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			where = "at " + a.Address
		}
	}
	return fmt.Errorf("--node-name %s: the cluster has a node of that name already (%s): choose another name, or `karve kubectl delete node %s` if that machine is gone", name, where, name)
}

// Alive tells whether a Node is Ready.
func Alive(n *corev1.Node) bool {
	_, ready := nodeutil.GetNodeCondition(&n.Status, corev1.NodeReady)
	return ready != nil && ready.Status == corev1.ConditionTrue
}

// OfferedKeys are the lines that the servers offer for authorized_keys, in a ConfigMap that exists
// soon after the start of a server with --ssh-user.
func (c *Cluster) OfferedKeys(ctx context.Context, user string, patience time.Duration) ([]string, error) {
	const where = "the ConfigMap " + tunnels.OfferName + " in kube-public"
	var offer *corev1.ConfigMap
	for deadline := time.Now().Add(patience); ; {
		var err error
		offer, err = c.Client.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, tunnels.OfferName, metav1.GetOptions{})
		if err == nil {
			break
		}
		// The server also makes the Role that lets a token read it.
		if !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
			return nil, fmt.Errorf("--ssh-user: %s cannot be read from %s: %w", where, c.Server, err)
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("--ssh-user %s: %s offers no SSH key to nodes (%[3]w): start the server with --ssh-user %[1]s, or leave the option out here", user, c.Server, err)
		}
		if err := pause(ctx, time.Second); err != nil {
			return nil, err
		}
	}
	if its := offer.Data[tunnels.OfferUser]; its != user {
		return nil, fmt.Errorf("--ssh-user %s: the server logs in as %q, says %s: give that user, or start the server with --ssh-user %[1]s", user, its, where)
	}
	lines, err := tunnels.Offered(offer.Data[tunnels.OfferLines])
	if err == nil && len(lines) == 0 {
		err = errors.New("it has no key")
	}
	if err != nil {
		return nil, fmt.Errorf("--ssh-user: %s, %s: %w: delete it with `karve kubectl -n kube-public delete configmap %s`, and restart the server, which makes it anew", where, tunnels.OfferLines, err, tunnels.OfferName)
	}
	return lines, nil
}
