package example

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/go-logr/logr"
	"github.com/karve-k8s/karve/servertest/process"
)

// patience is how long a busy machine may take.
const patience = 2 * time.Minute

// environment starts envtest with the programs that karve provides, and stops it with the
// test.
func environment(t *testing.T, e *envtest.Environment) client.Client {
	t.Helper()
	log.SetLogger(logr.Discard())
	karve := os.Getenv(process.BinaryVariable)
	if karve == "" {
		karve = "karve"
	}
	e.BinaryAssetsDirectory = t.TempDir()
	if out, err := exec.Command(karve, "envtest-assets", "--dir", e.BinaryAssetsDirectory).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	e.ControlPlaneStartTimeout, e.ControlPlaneStopTimeout = patience, patience
	// A start that fails may have started some of the programs.
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	config, err := e.Start()
	if err != nil {
		t.Fatal(err)
	}
	api, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// refuse is a webhook that refuses every ConfigMap that asks for it.
func refuse(_ context.Context, r admission.Request) admission.Response {
	if strings.Contains(string(r.Object.Raw), "refuse me") {
		return admission.Denied("as it asks for")
	}
	return admission.Allowed("")
}

// What suites do with envtest: kinds of their own, webhooks in the test's process, users
// with fewer rights, kubectl. There are no controllers, which is what such suites expect.
func TestEnvtest(t *testing.T) {
	path, none, ignore := "/refuse", admissionv1.SideEffectClassNone, admissionv1.Fail
	e := &envtest.Environment{
		CRDDirectoryPaths:     []string{"crds"},
		ErrorIfCRDPathMissing: true,
		WebhookInstallOptions: envtest.WebhookInstallOptions{ValidatingWebhooks: []*admissionv1.ValidatingWebhookConfiguration{{
			ObjectMeta: metav1.ObjectMeta{Name: "refuse"},
			Webhooks: []admissionv1.ValidatingWebhook{{
				Name: "refuse.example.org", SideEffects: &none, FailurePolicy: &ignore, AdmissionReviewVersions: []string{"v1"},
				ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Name: "webhooks", Namespace: "default", Path: &path}},
				Rules: []admissionv1.RuleWithOperations{{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
				}},
			}},
		}}},
	}
	api := environment(t, e)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	options := e.WebhookInstallOptions
	hooks := webhook.NewServer(webhook.Options{Host: options.LocalServingHost, Port: options.LocalServingPort, CertDir: options.LocalServingCertDir})
	hooks.Register(path, &admission.Webhook{Handler: admission.HandlerFunc(refuse)})
	serving, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- hooks.Start(serving) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})

	object := func(name, text string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string]string{"text": text}}
	}
	for { // the webhook's server may not have started yet
		err := api.Create(ctx, object("taken", "take me"))
		if err == nil {
			break
		}
		if ctx.Err() != nil || !strings.Contains(err.Error(), "failed calling webhook") {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := api.Create(ctx, object("refused", "refuse me")); err == nil || !strings.Contains(err.Error(), "as it asks for") {
		t.Errorf("the webhook was not asked: %v", err)
	}

	boat := NewBoat()
	boat.SetName("karve")
	boat.SetNamespace("default")
	boat.Object["spec"] = map[string]any{"crew": int64(0)}
	if err := api.Create(ctx, boat); !apierrors.IsInvalid(err) {
		t.Errorf("a boat without a crew: %v, want it refused by its schema", err)
	}
	boat.Object["spec"] = map[string]any{"crew": int64(3)}
	if err := api.Create(ctx, boat); err != nil {
		t.Error(err)
	}

	user, err := e.AddUser(envtest.User{Name: "nobody", Groups: []string{"nothing"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	limited, err := client.New(user.Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := limited.List(ctx, &corev1.SecretList{}); !apierrors.IsForbidden(err) {
		t.Errorf("a user without rights lists secrets: %v", err)
	}
	//lint:ignore SA1019 existing suites call this one
	out, said, err := e.ControlPlane.KubeCtl().Run("get", "boats", "-o", "name")
	if err != nil {
		t.Fatalf("kubectl: %v", err)
	}
	text, err := io.ReadAll(io.MultiReader(out, said))
	if err != nil || string(text) != "boat.example.org/karve\n" {
		t.Errorf("kubectl get boats: %q, %v", text, err)
	}
	if err := api.Create(ctx, deployment()); err != nil {
		t.Fatal(err)
	}
	if n := pods(t, ctx, api); n != 0 {
		t.Errorf("%d pods, which somebody has made", n)
	}
	if err := api.Get(ctx, client.ObjectKey{Namespace: "default", Name: "default"}, &corev1.ServiceAccount{}); !apierrors.IsNotFound(err) {
		t.Errorf("the default service account: %v, want none without controllers", err)
	}
}

// With KARVE_CONTROLLERS=1 the same environment is a whole control plane.
func TestEnvtestWithControllers(t *testing.T) {
	t.Setenv("KARVE_CONTROLLERS", "1")
	api := environment(t, &envtest.Environment{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := api.Get(ctx, client.ObjectKey{Namespace: "default", Name: "default"}, &corev1.ServiceAccount{}); err != nil {
		t.Error(err)
	}
	if err := api.Create(ctx, deployment()); err != nil {
		t.Fatal(err)
	}
	for pods(t, ctx, api) != 2 {
		if ctx.Err() != nil {
			t.Fatal("the deployment has no pods")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func deployment() *appsv1.Deployment {
	replicas, labels := int32(2), map[string]string{"boat": "karve"}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "rowers"}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "rower", Image: "example.org/rower"}}}},
	}}
}

func pods(t *testing.T, ctx context.Context, api client.Client) int {
	t.Helper()
	var list corev1.PodList
	if err := api.List(ctx, &list, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}

// What envtest takes with the programs in KUBEBUILDER_ASSETS: the time of an operation is that of a start with a
// CustomResourceDefinition, of an object of its kind, and of a stop.
func BenchmarkEnvironment(b *testing.B) {
	log.SetLogger(logr.Discard())
	for b.Loop() {
		e := &envtest.Environment{CRDDirectoryPaths: []string{"crds"}, ErrorIfCRDPathMissing: true, ControlPlaneStartTimeout: patience, ControlPlaneStopTimeout: patience}
		fail := func(err error) { b.Fatal(errors.Join(err, e.Stop())) } // a start that fails may have started some of the programs
		began := time.Now()
		config, err := e.Start()
		if err != nil {
			fail(err)
		}
		b.ReportMetric(time.Since(began).Seconds(), "start-sec")
		api, err := client.New(config, client.Options{})
		if err != nil {
			fail(err)
		}
		boat := NewBoat()
		boat.SetName("karve")
		boat.SetNamespace("default")
		boat.Object["spec"] = map[string]any{"crew": int64(3)}
		// Where namespaces are made after the server has said that it is ready, this fails for a while.
		for err = api.Create(b.Context(), boat); err != nil; err = api.Create(b.Context(), boat) {
			if time.Since(began) > patience {
				fail(err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		b.ReportMetric(time.Since(began).Seconds(), "created-sec")
		stopping := time.Now()
		if err := e.Stop(); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(stopping).Seconds(), "stop-sec")
	}
}
