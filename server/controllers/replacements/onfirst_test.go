package replacements

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

type running struct{ began chan struct{} }

func (running) Name() string { return "policies" }

func (r running) Run(ctx context.Context) {
	close(r.began)
	<-ctx.Done()
}

// A controller is built with the first object, again if that fails, and once.
func TestOnFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		client := fake.NewClientset()
		factory := informers.NewSharedInformerFactory(client, 0)
		policies := factory.Admissionregistration().V1().ValidatingAdmissionPolicies().Informer()
		upstreams, built := running{make(chan struct{})}, 0
		c := OnFirst("policies", policies, func(context.Context) (Controller, error) {
			if built++; built < 3 {
				return nil, errors.New("no service account")
			}
			return upstreams, nil
		})
		factory.StartWithContext(ctx)
		over := make(chan struct{})
		go func() { defer close(over); c.Run(ctx) }()
		create := func(name string) {
			t.Helper()
			policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
			if _, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}

		time.Sleep(time.Hour)
		if built != 0 {
			t.Error("built without an object")
		}
		create("first")
		<-upstreams.began
		create("second")
		time.Sleep(time.Hour)
		if built != 3 {
			t.Errorf("built %d times, want 3: two failed", built)
		}
		stop()
		<-over
		factory.Shutdown()
	})
}

// A stop ends what waits for the first object, and what waits for another attempt.
func TestOnFirstStops(t *testing.T) {
	for name, exists := range map[string]bool{"no object": false, "fails": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				client := fake.NewClientset()
				if exists {
					client = fake.NewClientset(&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "first"}})
				}
				factory := informers.NewSharedInformerFactory(client, 0)
				c := OnFirst("policies", factory.Admissionregistration().V1().ValidatingAdmissionPolicies().Informer(), func(context.Context) (Controller, error) {
					return nil, errors.New("never")
				})
				factory.StartWithContext(ctx)
				time.AfterFunc(time.Minute+buildAgain/2, stop)
				c.Run(ctx)
				factory.Shutdown()
			})
		})
	}
}
