package membership

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"
)

// invalidSince is upstream's label of a Secret whose token it refuses (k8s.io/kubernetes/pkg/serviceaccount, InvalidSinceLabelKey).
const invalidSince = "kubernetes.io/legacy-token-invalid-since"

// RenewTokens is the part that takes the tokens which this server refuses out of Secrets of type
// kubernetes.io/service-account-token. The token controller puts new ones there, as it does in a Secret that
// never had one. It runs in each start with --new-authorities, so a kill in between loses nothing.
func (p *Part) RenewTokens(ctx context.Context, ready func()) error {
	if n, err := p.removeRefusedTokens(ctx); err != nil && ctx.Err() == nil {
		p.Log.Errorf("--%s: some Secrets of type %s may have tokens that are refused; the next start with the option tries again: %v",
			NewAuthoritiesOption, corev1.SecretTypeServiceAccountToken, err)
	} else if n > 0 {
		p.Log.Warnf("--%s: %d Secrets of type %s get new tokens: give them to the programs that use the old ones",
			NewAuthoritiesOption, n, corev1.SecretTypeServiceAccountToken)
	}
	ready()
	<-ctx.Done()
	return nil
}

func (p *Part) removeRefusedTokens(ctx context.Context) (removed int, err error) {
	client, err := kubernetes.NewForConfig(p.Client())
	if err != nil {
		return 0, err
	}
	all := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return client.CoreV1().Secrets("").List(ctx, o)
	})
	options := metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeServiceAccountToken)}
	err = all.EachListItem(ctx, options, func(object runtime.Object) error {
		secret := object.(*corev1.Secret)
		token := string(secret.Data[corev1.ServiceAccountTokenKey])
		if token == "" || secret.Labels[invalidSince] != "" {
			return nil
		}
		review, err := client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		if err != nil || review.Status.Authenticated {
			return err
		}
		patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"data":{%q:null}}`, secret.ResourceVersion, corev1.ServiceAccountTokenKey)
		_, err = client.CoreV1().Secrets(secret.Namespace).Patch(ctx, secret.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // somebody else has changed it
			return nil
		}
		removed++
		return err
	})
	return removed, err
}
