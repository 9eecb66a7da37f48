package addons

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/karve-k8s/karve/bootstrap/kubeadm"
)

// kubeletConfig is the ConfigMap from which nodes that join take their kubelet's configuration.
const kubeletConfig = "kubelet-config"

// kubeletDNS returns the addresses of the DNS in [kubeletConfig].
func kubeletDNS(ctx context.Context, client kubernetes.Interface) ([]string, error) {
	m, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, kubeletConfig, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var config struct {
		ClusterDNS []string `json:"clusterDNS"`
	}
	if err := yaml.Unmarshal([]byte(m.Data["kubelet"]), &config); err != nil {
		return nil, fmt.Errorf("ConfigMap %s/%s, kubelet: %w", namespace, kubeletConfig, err)
	}
	return config.ClusterDNS, nil
}

// TellKubelets makes kubelets that join from now on use the DNS at an address. What somebody else
// has set stays, with a warning, unless the options say otherwise. The result is empty if there is
// no configuration for kubelets.
func TellKubelets(ctx context.Context, client kubernetes.Interface, address string, o ApplyOptions) (result Result, warning string, err error) {
	result = Result{"configmap/" + kubeletConfig, Unchanged}
	current, err := kubeletDNS(ctx, client)
	switch {
	case apierrors.IsNotFound(err):
		return Result{}, fmt.Sprintf("there is no ConfigMap %s/%s, from which nodes learn the address of the DNS: set clusterDNS: [%s] in the configuration of their kubelets", namespace, kubeletConfig, address), nil
	case err != nil || slices.Equal(current, []string{address}):
		return result, "", err
	case len(current) > 0 && !o.ForceConflicts:
		return result, fmt.Sprintf("nodes that join use another DNS, because clusterDNS in ConfigMap %s/%s is %s; --force-conflicts sets it to %s",
			namespace, kubeletConfig, strings.Join(current, ", "), address), nil
	}
	if result.Action = Configured; !o.DryRun {
		_, err = kubeadm.SetClusterDNS(ctx, client, address)
	}
	return result, "", err
}

// UntellKubelets makes kubelets that join from now on use the DNS of their machine, if they used
// the cluster's. It reports whether they did.
func UntellKubelets(ctx context.Context, client kubernetes.Interface) (result Result, changed bool, err error) {
	services, err := serviceRange(ctx, client)
	if err != nil {
		return Result{}, false, err
	}
	address, err := DNSAddress(services)
	if err != nil {
		return Result{}, false, err
	}
	current, err := kubeletDNS(ctx, client)
	if apierrors.IsNotFound(err) || err == nil && !slices.Equal(current, []string{address}) {
		return Result{}, false, nil
	} else if err != nil {
		return Result{}, false, err
	}
	_, err = kubeadm.SetClusterDNS(ctx, client)
	return Result{"configmap/" + kubeletConfig, Configured}, true, err
}
