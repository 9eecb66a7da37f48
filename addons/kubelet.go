package addons

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"
)

// KubeletConfig is the ConfigMap from which nodes that join take their kubelet's configuration.
const KubeletConfig = "kubelet-config"

// KubeletDNS returns the addresses of the DNS in [KubeletConfig].
func KubeletDNS(ctx context.Context, client kubernetes.Interface) ([]string, error) {
	m, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, KubeletConfig, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var config struct {
		ClusterDNS []string `json:"clusterDNS"`
	}
	if err := yaml.Unmarshal([]byte(m.Data["kubelet"]), &config); err != nil {
		return nil, fmt.Errorf("ConfigMap %s/%s, kubelet: %w", namespace, KubeletConfig, err)
	}
	return config.ClusterDNS, nil
}
