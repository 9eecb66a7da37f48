package endtoend

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/internal/eventually"
)

// Three servers share a datastore: one only stores, and two may lead. The one that leads is killed with
// -9, and the other takes over.
func TestKilledLeaderIsFollowed(t *testing.T) {
	parallel(t)
	long(t)
	var times []string
	for _, component := range []string{"controller-manager", "scheduler"} {
		for _, arg := range []string{"lease-duration=4s", "renew-deadline=3s", "retry-period=1s"} {
			times = append(times, "--kube-"+component+"-arg=leader-elect-"+arg)
		}
	}
	store := start(t, t.TempDir(), append(bare, "--etcd-listen=http://127.0.0.1:0")...)
	sharing := func(address string) *process {
		dir := t.TempDir()
		certs := filepath.Join(dir, "certs")
		if err := os.CopyFS(certs, os.DirFS(filepath.Join(store.dir, "certs"))); err != nil {
			t.Fatal(err)
		}
		return start(t, dir, append(times, "--datastore-endpoint="+store.etcdURL(), "--advertise-address="+address)...)
	}
	first := sharing("192.0.2.1")
	second := sharing("192.0.2.2")
	const leads = "this server leads and runs the "
	for _, work := range []string{"controllers", "scheduler"} {
		if text := first.stderr.String(); !strings.Contains(text, leads+work) {
			t.Errorf("the first server does not run the %s; log:\n%s", work, text)
		}
		if text := second.stderr.String(); strings.Contains(text, leads+work) {
			t.Errorf("the second server runs the %s, too; log:\n%s", work, text)
		}
	}
	for _, lease := range []string{"kube-controller-manager", "kube-scheduler"} {
		if text := karve(t, "status", "--data-dir", first.dir); !strings.Contains(text, "this server, of "+lease) {
			t.Errorf("karve status of the first server does not say that it leads:\n%s", text)
		}
		host, _ := os.Hostname()
		if text := karve(t, "status", "--data-dir", second.dir); strings.Contains(text, "this server, of") || !strings.Contains(text, host+"_") || !strings.Contains(text, ", of "+lease) {
			t.Errorf("karve status of the second server does not say who leads:\n%s", text)
		}
	}

	first.kill()
	for _, work := range []string{"controllers", "scheduler"} {
		second.poll("the second server runs the "+work, func() error {
			if !strings.Contains(second.stderr.String(), leads+work) {
				return errors.New("not yet")
			}
			return nil
		})
	}
	c := client(t, second.config())
	labels := map[string]string{"app": "web"}
	if _, err := c.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually.Nil(t, "the controllers have made a Pod, and the scheduler has looked at it", func() error {
		pods, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		if err == nil && (len(pods.Items) != 1 || len(pods.Items[0].Status.Conditions) == 0) {
			err = fmt.Errorf("got %v", pods.Items)
		}
		return err
	})
}
