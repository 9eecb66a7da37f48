package addons

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"
)

// kubeletConfig is the ConfigMap from which nodes that join take their kubelet's configuration.
const kubeletConfig = "kubelet-config"

// KubeletDNS returns the addresses of the DNS in kubelet-config; none if there is no such ConfigMap.
func KubeletDNS(ctx context.Context, client kubernetes.Interface) ([]string, error) {
	m, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, kubeletConfig, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
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

// followLimit is how long the server may take to let kubelet-config follow.
const followLimit = 5 * time.Second

// AwaitKubeletDNS waits until the server has written an address of the DNS into kubelet-config. The warning says that it does not.
func AwaitKubeletDNS(ctx context.Context, client kubernetes.Interface, address string) (warning string, err error) {
	var now []string
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, followLimit, true, func(context.Context) (bool, error) {
		now, err = KubeletDNS(ctx, client)
		return slices.Contains(now, address), err
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		return fmt.Sprintf("nodes that join do not use this DNS: in ConfigMap %s/%s, clusterDNS is [%s], and the server does not change what somebody has edited, or anything with --no-kubeadm-objects\n"+
			"karve kubectl -n %[1]s edit configmap %[2]s sets it: clusterDNS: [%[4]s]", namespace, kubeletConfig, strings.Join(now, ", "), address), nil
	}
	return "", err
}
