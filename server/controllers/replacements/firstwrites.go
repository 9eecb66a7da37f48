package replacements

import (
	"context"
	"errors"
	"fmt"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
)

// firstWrites are the controllers that write to every cluster when they start, and not because an
// object has changed. Each function returns what is still missing. Package bootstrap makes what
// the others would write.
var firstWrites = map[string]func(context.Context, kubernetes.Interface) error{
	names.KubeAPIServerClusterTrustBundlePublisherController: func(ctx context.Context, client kubernetes.Interface) error {
		signer := metav1.ListOptions{FieldSelector: "spec.signerName=kubernetes.io/kube-apiserver-serving"}
		bundles, err := client.CertificatesV1().ClusterTrustBundles().List(ctx, signer)
		if err == nil && len(bundles.Items) == 0 {
			return errors.New("there is no ClusterTrustBundle of kube-apiserver-serving")
		}
		return err
	},
	names.ServiceCIDRController: func(ctx context.Context, client kubernetes.Interface) error {
		const first = "kubernetes" // upstream's pkg/controlplane/controller/defaultservicecidr creates it
		cidr, err := client.NetworkingV1().ServiceCIDRs().Get(ctx, first, metav1.GetOptions{})
		if err == nil && meta.FindStatusCondition(cidr.Status.Conditions, networkingv1.ServiceCIDRConditionReady) == nil {
			return fmt.Errorf("ServiceCIDR %s has no condition Ready", first)
		}
		return err
	},
}

// MissingWrites returns what one of the controllers has not written yet.
func MissingWrites(ctx context.Context, client kubernetes.Interface, running []string) error {
	for name, missing := range firstWrites {
		if !slices.Contains(running, name) {
			continue
		}
		if err := missing(ctx, client); err != nil && !apierrors.IsNotFound(err) { // NotFound: this version of the API is off
			return err
		}
	}
	return nil
}
