package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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

// firstWritesPoll is how often AwaitFirstWrites checks.
const firstWritesPoll = 10 * time.Millisecond

// AwaitFirstWrites waits until the controllers that run here have written what they write to every
// cluster at their start. They do so soon after they are ready. A snapshot without that would
// differ from each cluster that starts with it. client is an administrator's.
func (c *Controllers) AwaitFirstWrites(ctx context.Context, client kubernetes.Interface) error {
	tick := time.NewTicker(firstWritesPoll)
	defer tick.Stop()
	for {
		err := missingWrites(ctx, client, c.Names())
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// missingWrites returns what one of the controllers has not written yet.
func missingWrites(ctx context.Context, client kubernetes.Interface, running []string) error {
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
