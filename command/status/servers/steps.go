package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/internal/quote"
	"github.com/karve-k8s/karve/server/membership"
)

// stepPatience is how long after its start a server may take to say which steps it has taken.
const stepPatience = 5 * time.Second

// AwaitStep returns an error that names the servers which have not taken a step in the replacement of keys. A server counts until its
// Lease expires, because it may still serve.
func AwaitStep(ctx context.Context, api kubernetes.Interface, kind membership.Kind, step string) error {
	var late []string
	err := wait.PollUntilContextTimeout(ctx, time.Second, stepPatience, true, func(context.Context) (bool, error) {
		leases, err := api.CoordinationV1().Leases(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: membership.ServerLabel})
		if err != nil {
			return false, err
		}
		late = nil
		alive := 0
		for _, l := range leases.Items {
			if !lasts(l) {
				continue
			}
			alive++
			taken := map[membership.Kind]string{}
			_ = json.Unmarshal([]byte(l.Annotations[membership.StepsAnnotation]), &taken) // without any, it has taken none
			if taken[kind] != step {
				late = append(late, l.Labels[corev1.LabelHostname]+" ("+l.Name+")")
			}
		}
		if alive == 0 {
			return false, errors.New("no server has a Lease in kube-system: is the feature gate APIServerIdentity off?")
		}
		return len(late) == 0, nil
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		err = fmt.Errorf("not all servers have taken the step before this one: start them again with --%s, one at a time: %s. A server that is gone counts for an hour, or until you delete its Lease in kube-system, apiserver-…",
			membership.Option, strings.Join(late, ", "))
	}
	return err
}

func lasts(l coordinationv1.Lease) bool {
	duration := time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 0)) * time.Second
	return l.Spec.RenewTime != nil && time.Since(l.Spec.RenewTime.Time) <= duration
}

// NodesFollow returns an error that names the nodes which last came with a certificate of another authority than issuer, or have not come since
// the start of the server. A node counts while its Lease lasts.
func NodesFollow(ctx context.Context, api kubernetes.Interface, issuer string) error {
	leases, err := api.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var late []string
	for _, l := range leases.Items {
		by, came := l.Annotations[membership.IssuerAnnotation]
		if lasts(l) && (!came || by != "" && by != issuer) { // empty: without a certificate
			late = append(late, l.Name)
		}
	}
	if len(late) == 0 {
		return nil
	}
	return fmt.Errorf("--drop-old: these nodes would be locked out at once, because they have not come with a certificate of the new authority %s since the server's start: %s. Nodes of karve node follow within an hour, or by karve node upgrade there; nodes of kubeadm join again. To lock them out nevertheless: --force",
		issuer, quote.First(late, ", "))
}
