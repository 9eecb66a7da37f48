// Package clusterinfo reads the ConfigMap from which a machine that joins learns where the cluster is.
package clusterinfo

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
)

// Name is the kind, namespace and name of the ConfigMap, for messages.
const Name = "ConfigMap " + metav1.NamespacePublic + "/" + bootstrapapi.ConfigMapClusterInfo

// ErrUnreadable means that somebody has changed the ConfigMap so that no machine can join with it.
var ErrUnreadable = errors.New("has no kubeconfig with a cluster that machines join")

// Read returns the cluster that the ConfigMap describes. Without the ConfigMap, the error is
// apierrors.IsNotFound.
func Read(ctx context.Context, client kubernetes.Interface) (*clientcmdapi.Cluster, error) {
	info, err := client.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, bootstrapapi.ConfigMapClusterInfo, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	_, cluster, err := Parse(info.Data[bootstrapapi.KubeConfigKey])
	if err != nil {
		return nil, fmt.Errorf("%s %w in its field %s: %w", Name, ErrUnreadable, bootstrapapi.KubeConfigKey, err)
	}
	return cluster, nil
}

// Parse returns the kubeconfig in the ConfigMap, and the cluster in it that kubeadm join takes: the one
// without a name, or that of the current context. (kubeadm's own function is in a package that links
// much more.)
func Parse(kubeconfig string) (*clientcmdapi.Config, *clientcmdapi.Cluster, error) {
	config, err := clientcmd.Load([]byte(kubeconfig))
	if err != nil {
		return nil, nil, err
	}
	name := ""
	if current := config.Contexts[config.CurrentContext]; current != nil && config.Clusters[name] == nil {
		name = current.Cluster
	}
	if cluster := config.Clusters[name]; cluster != nil {
		return config, cluster, nil
	}
	return nil, nil, fmt.Errorf("the kubeconfig has no cluster %q", name)
}
