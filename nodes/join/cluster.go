package join

import (
	"context"
	"fmt"
	"net"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	nodeutil "k8s.io/component-helpers/node/util"
	"sigs.k8s.io/yaml"

	"github.com/karve-k8s/karve/bootstrap/kubeadm"
)

// cluster is what a token may learn about a cluster.
type cluster struct {
	server  string
	ca      []byte // everything that cluster-info has: PEM
	client  kubernetes.Interface
	version *utilversion.Version
	// kubelet is the KubeletConfiguration of the ConfigMap kubelet-config.
	kubelet map[string]any
	// podSubnet is the range of all Pods, as kubeadm-config has it. The cluster gives each node a part of it,
	// unless that is switched off, which nothing in the cluster tells. Empty: it gives none.
	podSubnet string
}

// notPrepared is the remedy if one of kubeadm's objects is missing.
const notPrepared = "upgrade the server with install.sh: newer versions prepare the cluster for nodes"

// read asks for everything that a join needs, and whether the token may join.
func (c *cluster) read(ctx context.Context) error {
	v, err := c.client.Discovery().ServerVersion()
	if err != nil {
		return explainConnection(c.server, err)
	}
	if c.version, err = utilversion.ParseSemantic(v.GitVersion); err != nil {
		return fmt.Errorf("%s has the version %q: %w", c.server, v.GitVersion, err)
	}
	for _, subresource := range []string{"", "nodeclient"} { // to ask, and to be answered
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: "certificates.k8s.io", Resource: "certificatesigningrequests", Subresource: subresource, Verb: "create"},
		}}
		answer, err := c.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		switch {
		case apierrors.IsUnauthorized(err):
			return fmt.Errorf("--token: %s does not accept it for authentication: it has just expired, or was made without the usage \"authentication\": make a new one with `karve token create --print-install-command`", c.server)
		case err != nil:
			return fmt.Errorf("ask %s what the token may do: %w", c.server, err)
		case !answer.Status.Allowed:
			return fmt.Errorf("--token: it may not create certificatesigningrequests/%s: the ClusterRoleBindings of kubeadm for nodes are missing, or the token lacks the group system:bootstrappers:kubeadm:default-node-token: %s", subresource, notPrepared)
		}
	}
	if c.kubelet, err = readKubelet(ctx, c.client, c.server); err != nil {
		return err
	}
	networking, _ := kubeadm.Networking(ctx, c.client) // a cluster need not have it
	c.podSubnet = networking.PodSubnet
	return nil
}

// readKubelet reads the KubeletConfiguration of the ConfigMap kubelet-config.
func readKubelet(ctx context.Context, client kubernetes.Interface, server string) (map[string]any, error) {
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

// free fails if the name is another machine's.
func (c *cluster) free(ctx context.Context, m *Machine, name string) error {
	n, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("%s: whether there is a node %s cannot be read (%w): %s", c.server, name, err, notPrepared)
	}
	id := m.machineID()
	here := id != "" && id == n.Status.NodeInfo.MachineID
	// Copies of one SD card have the same machine-id. A node that is alive, while no kubelet
	// runs here, is another machine unless it has an address of this one.
	if here && alive(n) && !slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool { return m.hasAddress(a.Address) }) {
		here = false
	}
	if here {
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

func alive(n *corev1.Node) bool {
	_, ready := nodeutil.GetNodeCondition(&n.Status, corev1.NodeReady)
	return ready != nil && ready.Status == corev1.ConditionTrue
}

// hasAddress tells whether an address is one of this machine's.
func (m *Machine) hasAddress(text string) bool {
	ip := net.ParseIP(text)
	if ip == nil {
		return false
	}
	addresses, err := m.addresses()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(addresses, func(p net.IPNet) bool { return p.IP.Equal(ip) })
}
