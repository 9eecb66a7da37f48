package server_test

import (
	"crypto/x509/pkix"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/internal/eventually"
)

func clientFor(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	fatal(t, err)
	return client
}

// whoami returns the name and the groups under which the API server knows a client.
func whoami(t *testing.T, client kubernetes.Interface) (string, []string) {
	t.Helper()
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	fatal(t, err)
	return review.Status.UserInfo.Username, review.Status.UserInfo.Groups
}

func wantForbidden(t *testing.T, what string, err error) {
	t.Helper()
	if !apierrors.IsForbidden(err) {
		t.Errorf("%s: got %v, want it forbidden", what, err)
	}
}

func TestNodeAuthorizer(t *testing.T) {
	c := shared(t)
	ctx := t.Context()
	ns := c.namespace(t)
	own, other := ns+"-own", ns+"-other"
	c.node(t, own)
	c.node(t, other)
	for _, name := range []string{"used", "unused"} {
		create(t, c.CoreV1().Secrets(ns), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	p := pod("on-own")
	p.Spec.NodeName = own
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "used"}}}}
	create(t, c.CoreV1().Pods(ns), p)

	node := clientFor(t, c.withCertificate(t, pkix.Name{CommonName: "system:node:" + own, Organization: []string{"system:nodes"}}))
	eventually.Nil(t, "the node reads the Secret of its Pod", func() error {
		_, err := node.CoreV1().Secrets(ns).Get(ctx, "used", metav1.GetOptions{})
		return err
	})
	_, err := node.CoreV1().Secrets(ns).Get(ctx, "unused", metav1.GetOptions{})
	wantForbidden(t, "read a Secret that no Pod of the node has", err)

	// NodeRestriction: a node may change itself, but no other node.
	label := func(name string) error {
		n, err := node.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		metav1.SetMetaDataLabel(&n.ObjectMeta, "test", "yes")
		_, err = node.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
		return err
	}
	eventually.Nil(t, "the node labels itself", func() error { return label(own) })
	eventually.Nil(t, "another node it may not", func() error {
		err := label(other)
		if apierrors.IsConflict(err) { // with a controller
			return err
		}
		wantForbidden(t, "label another node", err)
		return nil
	})
	mirror := pod("elsewhere")
	mirror.Spec.NodeName = other
	_, err = node.CoreV1().Pods(ns).Create(ctx, mirror, metav1.CreateOptions{})
	wantForbidden(t, "create a Pod on another node", err)
}
