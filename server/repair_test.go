package server_test

import (
	"context"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/deviations"
)

// If users have changed the objects of a running cluster, or an older release left others, the
// objects after the next start are the same as after a start with upstream's hooks.
func TestRepairsAsUpstreamDoes(t *testing.T) {
	compares(t, deviations.Bootstrap)
	certs := t.TempDir()
	restarted := func(upstreams bool, like *state) *state {
		dir := t.TempDir()
		h := history{configure: func(*testing.T, *server.Config) {}, upstreams: upstreams, certs: certs, dir: dir, between: damage}
		h.settle(t, nil)
		h.between = nil
		lose(t, dir, "/registry/priorityclasses/system-node-critical", "/registry/namespaces/default", "/registry/servicecidrs/kubernetes")
		return h.settle(t, like)
	}
	upstreams := restarted(true, nil)
	repaired := restarted(false, upstreams)
	repaired.compare(t, upstreams)

	if !strings.Contains(repaired.log, "creating them") {
		t.Errorf("nothing was repaired by upstream's hook; log:\n%s", repaired.log)
	}
	// This shows that there was damage, and that some of it was repaired; otherwise the test
	// would prove nothing.
	role := func(name string) map[string]any {
		return repaired.objects["clusterroles.rbac.authorization.k8s.io /"+name]
	}
	for _, name := range []string{"cluster-admin", "system:node"} {
		if role(name) == nil {
			t.Errorf("ClusterRole %s: not there again", name)
		}
	}
	if rules, _ := role("system:persistent-volume-provisioner")["rules"].([]any); len(rules) != 1 {
		t.Errorf("ClusterRole system:persistent-volume-provisioner: got rules %v, want the one that was left, since it is not to be updated", rules)
	}
	if repaired.objects["clusterrolebindings.rbac.authorization.k8s.io /"+kubeletClientBinding] == nil {
		t.Errorf("ClusterRoleBinding %s: not there again", kubeletClientBinding)
	}
	if repaired.objects["priorityclasses.scheduling.k8s.io /system-node-critical"] == nil {
		t.Error("PriorityClass system-node-critical: not there again")
	}
}

// kubeletClientBinding lets the API server use kubelets: its certificate has no group.
const kubeletClientBinding = "kubeadm:apiserver-kubelet-client"

// lose deletes keys that the API would not let anyone delete.
func lose(t *testing.T, dir string, keys ...string) {
	t.Helper()
	engine, closeStore := openStore(t, dir)
	defer closeStore()
	for _, key := range keys {
		resp, err := engine.Delete(t.Context(), datastore.DeleteRequest{Key: key})
		if err != nil || resp.Deleted != 1 {
			t.Fatalf("delete %s: got %+v and error %v, want 1 deleted", key, resp, err)
		}
	}
}

// damage changes objects through the API, as an administrator.
func damage(t *testing.T, c *cluster) {
	t.Helper()
	ctx, all := t.Context(), metav1.DeleteOptions{}
	rbac := c.RbacV1()

	// Deleted objects.
	fatal(t, rbac.ClusterRoles().Delete(ctx, "cluster-admin", all))
	fatal(t, rbac.ClusterRoleBindings().Delete(ctx, "system:basic-user", all))
	fatal(t, rbac.ClusterRoleBindings().Delete(ctx, kubeletClientBinding, all))
	fatal(t, rbac.Roles("kube-system").Delete(ctx, "system::leader-locking-kube-scheduler", all))
	fatal(t, rbac.RoleBindings("kube-public").Delete(ctx, "system:controller:bootstrap-signer", all))
	fatal(t, c.CoreV1().ServiceAccounts("kube-public").Delete(ctx, "default", all))
	fatal(t, c.FlowcontrolV1().FlowSchemas().Delete(ctx, "probes", all))

	// Changed objects: missing rules and subjects are added, others are kept.
	change(t, rbac.ClusterRoles(), "system:node", func(r *rbacv1.ClusterRole) { r.Rules = r.Rules[:1] })
	change(t, rbac.ClusterRoles(), "system:node-proxier", func(r *rbacv1.ClusterRole) {
		r.Rules = append(r.Rules, rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"own.example"}, Resources: []string{"extras"}})
		delete(r.Labels, "kubernetes.io/bootstrapping")
	})
	change(t, rbac.ClusterRoles(), "system:kube-dns", func(r *rbacv1.ClusterRole) { r.Rules = nil })
	change(t, rbac.ClusterRoleBindings(), "system:kube-dns", func(b *rbacv1.ClusterRoleBinding) { b.Subjects = nil })
	change(t, rbac.ClusterRoleBindings(), "system:node-proxier", func(b *rbacv1.ClusterRoleBinding) {
		b.Subjects = append(b.Subjects, rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "own"})
	})

	// Objects that must not be updated are kept as they are.
	change(t, rbac.ClusterRoles(), "system:persistent-volume-provisioner", func(r *rbacv1.ClusterRole) {
		r.Annotations[rbacv1.AutoUpdateAnnotationKey] = "false"
		r.Rules = r.Rules[:1]
	})

	// A binding to another role, which cannot be changed, is created again.
	binding, err := rbac.ClusterRoleBindings().Get(ctx, "system:volume-scheduler", metav1.GetOptions{})
	fatal(t, err)
	fatal(t, rbac.ClusterRoleBindings().Delete(ctx, binding.Name, all))
	binding.ResourceVersion, binding.RoleRef.Name = "", "view"
	create(t, rbac.ClusterRoleBindings(), binding)
}

// changer is the part of every typed client that change uses.
type changer[T any] interface {
	Get(context.Context, string, metav1.GetOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
}

func change[T any](t *testing.T, client changer[T], name string, how func(T)) {
	t.Helper()
	object, err := client.Get(t.Context(), name, metav1.GetOptions{})
	fatal(t, err)
	how(object)
	if _, err := client.Update(t.Context(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("change %s: %v", name, err)
	}
}
