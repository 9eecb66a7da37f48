package replacements

import (
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
)

func TestMissingWrites(t *testing.T) {
	bundle := &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes.io:kube-apiserver-serving:1"}}
	created := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}}
	served := created.DeepCopy()
	served.Status.Conditions = []metav1.Condition{{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue}}
	both := []string{names.ServiceCIDRController, names.KubeAPIServerClusterTrustBundlePublisherController, names.NamespaceController}
	for what, test := range map[string]struct {
		running []string
		objects []runtime.Object
		missing bool
	}{
		"no controllers":      {running: nil},
		"no bundle":           {both, []runtime.Object{served}, true},
		"no condition":        {both, []runtime.Object{bundle, created}, true},
		"everything":          {both, []runtime.Object{bundle, served}, false},
		"one does not run":    {both[:1], []runtime.Object{served}, false},
		"a kind is not there": {both[:1], nil, false},
	} {
		t.Run(what, func(t *testing.T) {
			err := MissingWrites(t.Context(), fake.NewClientset(test.objects...), test.running)
			if (err != nil) != test.missing {
				t.Errorf("got %v, want an error: %v", err, test.missing)
			}
		})
	}
}
