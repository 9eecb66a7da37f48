package simulate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/utils/ptr"
)

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
					got, want := ShouldRestart(&c, &p, code), podutil.ContainerShouldRestart(c, p.Spec, code)
					if got != want {
						t.Errorf("policy %q, own %v, rules %+v, exit code %d: got %v, upstream has %v", pod, own, rules, code, got, want)
					}
				}
			}
		}
	}
}
