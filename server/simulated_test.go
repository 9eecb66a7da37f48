package server_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/simulate"
)

func TestSimulateNodesIsChecked(t *testing.T) {
	for _, c := range []struct {
		config server.Config
		want   string
	}{
		{server.Config{SimulateNodes: -1}, "--simulate-nodes -1: want a number of nodes from 1 to 16384, or 0 for none"},
		{server.Config{SimulateNodes: 20000}, "--simulate-nodes 20000: want"},
		{server.Config{SimulateNodes: 1, ServiceClusterIPRange: "100.64.0.0/16"}, "--cluster-cidr"},
		{server.Config{SimulateNodes: 1, ServiceClusterIPRange: "100.64.0.0/16", ClusterCIDR: "10.1.0.0/16"}, ""},
		{server.Config{SimulateNodes: 1, ServiceClusterIPRange: "10.96.0.0/12,fd00:10::/112"}, ""},
	} {
		c.config.DataDir = t.TempDir()
		err := c.config.Validate(t.Context())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: got %v, want %q", c.config, err, c.want)
		}
	}
}

func TestShouldRestartIsUpstreams(t *testing.T) {
	in := func(op corev1.ContainerRestartRuleOnExitCodesOperator) []corev1.ContainerRestartRule {
		return []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: op, Values: []int32{1, 7}}}}
	}
	for _, pod := range []corev1.RestartPolicy{"", corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever} {
		for _, own := range []*corev1.ContainerRestartPolicy{nil, ptr.To(corev1.ContainerRestartPolicyAlways), ptr.To(corev1.ContainerRestartPolicyOnFailure), ptr.To(corev1.ContainerRestartPolicyNever)} {
			for _, rules := range [][]corev1.ContainerRestartRule{nil, in(corev1.ContainerRestartRuleOnExitCodesOpIn), in(corev1.ContainerRestartRuleOnExitCodesOpNotIn)} {
				for _, code := range []int32{0, 1, 2} {
					c := corev1.Container{Name: "main", RestartPolicy: own, RestartPolicyRules: rules}
					p := corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: pod, Containers: []corev1.Container{c}}}
					got, want := simulate.ShouldRestart(&c, &p, code), podutil.ContainerShouldRestart(c, p.Spec, code)
					if got != want {
						t.Errorf("policy %q, own %v, rules %+v, exit code %d: got %v, upstream has %v", pod, own, rules, code, got, want)
					}
				}
			}
		}
	}
}
