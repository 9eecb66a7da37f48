package server_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/page"
)

// blockers are what somebody may write through the API that keeps the control plane from its start.
var blockers = map[string]struct {
	configure func(*server.Config) // of the second start; may be nil
	block     func(t *testing.T, c *kubernetes.Clientset)
	unblock   func(t *testing.T, c *kubernetes.Clientset)
	check     string   // of /readyz, with the reason; empty: the log has it only
	names     []string // in the reason
}{
	"a webhook without a backend": {
		block: func(t *testing.T, c *kubernetes.Clientset) {
			blockingWebhook(t, c, "serviceaccounts/token")
		},
		unblock: deleteWebhook,
		check:   "controllers",
		names:   []string{"serviceaccounts/", "gone.example.com", "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations"},
	},
	"a policy": {
		block: func(t *testing.T, c *kubernetes.Clientset) {
			refuse(t, c, "everywhere", "serviceaccounts/token", "false", "no tokens")
		},
		unblock: func(t *testing.T, c *kubernetes.Clientset) {
			fatal(t, c.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(t.Context(), "everywhere", metav1.DeleteOptions{}))
		},
		check: "controllers",
		names: []string{"no tokens", "kubectl delete validatingadmissionpolicybinding everywhere"},
	},
	"a changed role": {
		block: func(t *testing.T, c *kubernetes.Clientset) {
			changeRole(t, c, "system:kube-scheduler", func(r *rbacv1.ClusterRole) {
				r.Annotations[rbacv1.AutoUpdateAnnotationKey], r.Rules = "false", nil
			})
			changeRole(t, c, "system:volume-scheduler", func(r *rbacv1.ClusterRole) {
				r.Annotations[rbacv1.AutoUpdateAnnotationKey], r.Rules = "false", nil
			})
		},
		unblock: func(t *testing.T, c *kubernetes.Clientset) {
			everything := []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}}
			changeRole(t, c, "system:kube-scheduler", func(r *rbacv1.ClusterRole) { r.Rules = everything })
		},
		check: "scheduler",
		names: []string{`User "system:kube-scheduler" cannot`, "kubectl delete clusterrole,clusterrolebinding system:kube-scheduler"},
	},
	"a quota": {
		block: func(t *testing.T, c *kubernetes.Clientset) {
			_, err := c.CoreV1().ResourceQuotas("kube-system").Create(t.Context(), &corev1.ResourceQuota{
				ObjectMeta: metav1.ObjectMeta{Name: "none"},
				Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/serviceaccounts": resource.MustParse("0")}},
			}, metav1.CreateOptions{})
			fatal(t, err)
			eventually.Nil(t, "the quota counts", func() error {
				q, err := c.CoreV1().ResourceQuotas("kube-system").Get(t.Context(), "none", metav1.GetOptions{})
				if err == nil && q.Status.Hard == nil {
					err = errors.New("not yet")
				}
				return err
			})
			fatal(t, c.CoreV1().ServiceAccounts("kube-system").Delete(t.Context(), "resourcequota-controller", metav1.DeleteOptions{}))
		},
		unblock: func(t *testing.T, c *kubernetes.Clientset) {
			fatal(t, c.CoreV1().ResourceQuotas("kube-system").Delete(t.Context(), "none", metav1.DeleteOptions{}))
		},
		check: "controllers",
		names: []string{"exceeded quota: none", "kubectl delete resourcequota --namespace kube-system none"},
	},
	"a node with another Pod range": {
		configure: func(c *server.Config) { c.ClusterCIDR = "10.55.0.0/16" },
		block: func(t *testing.T, c *kubernetes.Clientset) {
			_, err := c.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "odd"}, Spec: corev1.NodeSpec{PodCIDR: "10.99.0.0/24", PodCIDRs: []string{"10.99.0.0/24"}},
			}, metav1.CreateOptions{})
			fatal(t, err)
		},
		unblock: func(t *testing.T, c *kubernetes.Clientset) {
			fatal(t, c.CoreV1().Nodes().Delete(t.Context(), "odd", metav1.DeleteOptions{}))
		},
		check: "controllers",
		names: []string{"node odd has the Pod range 10.99.0.0/24", "--cluster-cidr 10.55.0.0/16 --kube-controller-manager-arg allocate-node-cidrs=false"},
	},
	"a webhook before a missing role": { // which a hook of the API server makes
		block: func(t *testing.T, c *kubernetes.Clientset) {
			fatal(t, c.RbacV1().ClusterRoles().Delete(t.Context(), "system:node-problem-detector", metav1.DeleteOptions{}))
			blockingWebhook(t, c, "clusterroles")
		},
		unblock: deleteWebhook,
		names:   []string{"POST /apis/rbac.authorization.k8s.io/v1/clusterroles", "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations"},
	},
}

func createOf(path string) registrationv1.RuleWithOperations {
	return registrationv1.RuleWithOperations{
		Operations: []registrationv1.OperationType{registrationv1.Create},
		Rule:       registrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{path}},
	}
}

// refuse makes a policy and its binding, both with a name, which refuse to create what does not pass an expression.
func refuse(t *testing.T, c kubernetes.Interface, name, resource, unless, message string) {
	t.Helper()
	create(t, c.AdmissionregistrationV1().ValidatingAdmissionPolicies(), &registrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: registrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &registrationv1.MatchResources{ResourceRules: []registrationv1.NamedRuleWithOperations{{RuleWithOperations: createOf(resource)}}},
			Validations:      []registrationv1.Validation{{Expression: unless, Message: message}},
		},
	})
	create(t, c.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings(), &registrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       registrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []registrationv1.ValidationAction{registrationv1.Deny}},
	})
}

// blockingWebhook makes a webhook that does not answer, and waits until it refuses.
func blockingWebhook(t *testing.T, c *kubernetes.Clientset, path string) {
	t.Helper()
	_, err := c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "gone"},
		Webhooks: []registrationv1.ValidatingWebhook{{
			Name: "gone.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr.To(registrationv1.SideEffectClassNone),
			FailurePolicy: ptr.To(registrationv1.Fail), TimeoutSeconds: ptr.To[int32](1),
			ClientConfig: registrationv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:9/")},
			Rules:        []registrationv1.RuleWithOperations{createOf(path)},
		}},
	}, metav1.CreateOptions{})
	fatal(t, err)
}

func deleteWebhook(t *testing.T, c *kubernetes.Clientset) {
	t.Helper()
	fatal(t, c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "gone", metav1.DeleteOptions{}))
}

func changeRole(t *testing.T, c *kubernetes.Clientset, name string, change func(*rbacv1.ClusterRole)) {
	t.Helper()
	role, err := c.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
	fatal(t, err)
	change(role)
	_, err = c.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{})
	fatal(t, err)
}

// Nothing that is written through the API ends the server or keeps an administrator out: the API server
// serves, the kubeconfig is there, the reason and the remedy are told, and the start goes on when the cause is
// removed.
func TestBlockedStart(t *testing.T) {
	compares(t, deviations.Bootstrap) // upstream's hook would end the process
	last := start(t, nil)             // the server of the case before
	t.Cleanup(func() { last.cancel(); <-last.done })
	for name, blocker := range blockers {
		t.Run(name, func(t *testing.T) {
			blocker.block(t, last.Clientset)
			if err := last.stop(); err != nil {
				t.Fatalf("%v; log:\n%s", err, last.log)
			}
			var ready <-chan server.Info
			last, ready = startBlocked(t, last.dir, blocker.configure)
			c := last
			eventually.Nil(t, "the reason and the remedy are told", func() error {
				told, failed := c.log.String(), error(nil)
				if blocker.check != "" {
					reason, err := c.readyz(t, blocker.check)
					if err == nil {
						return errors.New("the check does not fail: " + reason)
					}
					if _, err := c.readyz(t, ""); err == nil {
						return errors.New("/readyz does not fail")
					}
					told, failed = reason, err
				}
				for _, want := range blocker.names {
					if !strings.Contains(told, want) || !strings.Contains(strings.ReplaceAll(c.log.String(), `\"`, `"`), want) {
						return fmt.Errorf("%q is missing in %s (%v)", want, told, failed)
					}
				}
				return nil
			})
			if _, text := get(t, httpClient(t, c.admin), c.admin.Host+page.Path); !strings.Contains(text, "<title>Not ready") || !strings.Contains(text, blocker.names[len(blocker.names)-1]) {
				t.Errorf("the page does not tell: %s", text)
			}
			select {
			case <-ready:
				t.Error("the server said that it is ready")
			case <-c.done:
				t.Fatalf("the server has ended: %v", c.err)
			default:
			}
			blocker.unblock(t, c.Clientset)
			select {
			case <-ready:
			case <-c.done:
				t.Fatalf("the server has ended: %v", c.err)
			}
			eventually.Nil(t, "/readyz is ok", func() error { _, err := c.readyz(t, ""); return err })
		})
	}
	if err := last.stop(); err != nil {
		t.Errorf("%v; log:\n%s", err, last.log)
	}
}

// startBlocked starts a control plane that cannot become ready, and returns when its kubeconfig is there. The
// caller stops it.
func startBlocked(t *testing.T, dir string, configure func(*server.Config)) (c *cluster, ready <-chan server.Info) {
	t.Helper()
	kubeconfig := filepath.Join(dir, "admin.kubeconfig")
	fatal(t, os.Remove(kubeconfig)) // that of the first start
	c, ready = boot(dir, configure)
	eventually.Nil(t, "the administrator's kubeconfig is there", func() error {
		select {
		case <-c.done:
			t.Fatalf("the server has ended: %v", c.err)
		default:
		}
		_, err := os.Stat(kubeconfig)
		return err
	})
	fatal(t, c.connect(kubeconfig))
	return c, ready
}

// readyz is the text of a check of /readyz, or of all. The error says that it fails.
func (c *cluster) readyz(t *testing.T, check string) (string, error) {
	t.Helper()
	status, text := get(t, httpClient(t, c.admin), strings.TrimSuffix(c.admin.Host+"/readyz/"+check, "/"))
	return text, contains(status, text)
}
