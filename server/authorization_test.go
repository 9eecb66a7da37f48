package server_test

import (
	"crypto/x509/pkix"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/internal/eventually"
)

func clientFor(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// whoami returns the name and the groups under which the API server knows a client.
func whoami(t *testing.T, client kubernetes.Interface) (string, []string) {
	t.Helper()
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return review.Status.UserInfo.Username, review.Status.UserInfo.Groups
}

func wantForbidden(t *testing.T, what string, err error) {
	t.Helper()
	if !apierrors.IsForbidden(err) {
		t.Errorf("%s: got %v, want it forbidden", what, err)
	}
}

func TestServiceAccountTokenIsAccepted(t *testing.T) {
	c := shared(t)
	ns := c.namespace(t)
	config := c.asServiceAccount(t, ns)
	client := clientFor(t, config)
	if got, _ := whoami(t, client); got != "system:serviceaccount:"+ns+":default" {
		t.Errorf("got %s", got)
	}
	_, err := client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	wantForbidden(t, "list Pods without a role", err)

	// Rights that are granted to the account take effect.
	create(t, c.RbacV1().RoleBindings(ns), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "default", Namespace: ns}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
	})
	eventually.Nil(t, "the account may list Pods", func() error {
		_, err := client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		return err
	})
	_, err = client.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{})
	wantForbidden(t, "list Pods of another namespace", err)

	config.BearerToken += "x"
	_, err = clientFor(t, config).CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsUnauthorized(err) {
		t.Errorf("a token that was tampered with: got %v, want it unauthorized", err)
	}
}

func TestUnknownCertificateUserIsDenied(t *testing.T) {
	c := shared(t)
	client := clientFor(t, c.withCertificate(t, pkix.Name{CommonName: "nobody-special"}))
	if got, _ := whoami(t, client); got != "nobody-special" {
		t.Errorf("got %s, want nobody-special", got)
	}
	_, err := client.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
	wantForbidden(t, "list Secrets", err)
	_, err = client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "no"}}, metav1.CreateOptions{})
	wantForbidden(t, "create a Namespace", err)

	_, err = clientFor(t, rest.AnonymousClientConfig(c.admin)).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
	wantForbidden(t, "list Secrets as nobody at all", err)
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

func TestImpersonation(t *testing.T) {
	c := shared(t)
	bothListeners(t, c, func(t *testing.T, config *rest.Config) {
		config = rest.CopyConfig(config)
		config.Impersonate = rest.ImpersonationConfig{UserName: "olaf", Groups: []string{"crew"}}
		client := clientFor(t, config)
		name, groups := whoami(t, client)
		if name != "olaf" || len(groups) == 0 || groups[0] != "crew" {
			t.Errorf("got %s of %v, want olaf of the crew", name, groups)
		}
		if config.Host == c.InsecureURL {
			return // authorizes every request of any user
		}
		_, err := client.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
		wantForbidden(t, "list Secrets as olaf", err)
	})
	nobody := c.withCertificate(t, pkix.Name{CommonName: "nobody-special"})
	nobody.Impersonate.UserName = "kubernetes-admin"
	_, err := clientFor(t, nobody).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
	wantForbidden(t, "impersonate without the right to", err)
}
