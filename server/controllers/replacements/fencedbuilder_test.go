package replacements

import (
	"errors"
	"net/http"
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/controller-manager/pkg/clientbuilder"
)

type refusing struct{ error }

func (r refusing) RoundTrip(*http.Request) (*http.Response, error) { return nil, r.error }

// After the end of a term, no client asks for a token first, whichever method of upstream's builder has made it.
func TestClientsAskForNoTokenAfterTheTerm(t *testing.T) {
	over := errors.New("over")
	core := fake.NewClientset()
	builder := reflect.ValueOf(FencedBuilder{
		clientbuilder.NewDynamicClientBuilder(&rest.Config{Host: "https://127.0.0.1:1"}, core.CoreV1(), metav1.NamespaceSystem),
		func(config *rest.Config) *rest.Config {
			fenced := rest.CopyConfig(config)
			fenced.Wrap(func(http.RoundTripper) http.RoundTripper { return refusing{over} })
			return fenced
		},
	})
	of := builder.FieldByName("Of").Type()
	for i := range of.NumMethod() {
		name := of.Method(i).Name
		var err error
		switch made := builder.MethodByName(name).Call([]reflect.Value{reflect.ValueOf("busy-controller")})[0].Interface().(type) {
		case *rest.Config:
			_, err = kubernetes.NewForConfigOrDie(made).CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{})
		case kubernetes.Interface:
			_, err = made.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{})
		case discovery.DiscoveryInterface:
			_, err = made.ServerVersion()
		}
		if !errors.Is(err, over) {
			t.Errorf("%s: got %v, want the fence's error", name, err)
		}
	}
	for _, action := range core.Actions() {
		if action.GetSubresource() == "token" {
			t.Error("a token was asked for")
		}
	}
}
