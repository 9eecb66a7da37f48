package join

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	kubeletapis "k8s.io/kubelet/pkg/apis"
	taintutil "k8s.io/kubernetes/pkg/util/taints"
)

// parseLabels checks the labels as the kubelet does, which would not start otherwise, and writes them as it reads them.
func (o *Options) parseLabels() error {
	set, err := labels.ConvertSelectorToLabelsMap(o.Labels)
	if err != nil {
		return fmt.Errorf("%w: want key=value, separated by commas", err)
	}
	for key := range set {
		prefix, _, prefixed := strings.Cut(key, "/")
		if prefixed && reserved(prefix) && !kubeletapis.IsKubeletLabel(key) {
			return fmt.Errorf("a kubelet may not set %s: leave it out, and set it with `karve kubectl label node %s` on the server", key, o.Name)
		}
	}
	o.Labels = set.String()
	return nil
}

// reserved tells whether a prefix of labels belongs to Kubernetes.
func reserved(prefix string) bool {
	dotted := "." + prefix
	return strings.HasSuffix(dotted, ".kubernetes.io") || strings.HasSuffix(dotted, ".k8s.io")
}

// parseTaints checks the taints as the kubelet does, and writes them as it reads them.
func (o *Options) parseTaints() error {
	if o.Taints == "" {
		return nil
	}
	taints, removed, err := taintutil.ParseTaints(strings.Split(o.Taints, ","))
	if err != nil {
		return err
	}
	if len(removed) > 0 {
		return errors.New("a new node has no taint to remove")
	}
	var all []string
	for _, t := range taints {
		all = append(all, t.ToString())
	}
	o.Taints = strings.Join(all, ",")
	return nil
}
