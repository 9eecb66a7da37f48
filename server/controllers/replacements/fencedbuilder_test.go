package replacements

import (
	"errors"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/controller-manager/pkg/clientbuilder"
)

type refusing struct{ error }

func (r refusing) RoundTrip(*http.Request) (*http.Response, error) { return nil, r.error }

// After the end of a term, no client asks for a token first.
func TestClientsAskForNoTokenAfterTheTerm(t *testing.T) {
	over := errors.New("over")
	core := fake.NewClientset()
	builder := FencedBuilder{
		clientbuilder.NewDynamicClientBuilder(&rest.Config{Host: "https://127.0.0.1:1"}, core.CoreV1(), metav1.NamespaceSystem),
		func(config *rest.Config) *rest.Config {
			fenced := rest.CopyConfig(config)
			fenced.Wrap(func(http.RoundTripper) http.RoundTripper { return refusing{over} })
			return fenced
		},
	}
	client, err := builder.Client("busy-controller")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{}); !errors.Is(err, over) {
		t.Errorf("a request: %v", err)
	}
	served, err := builder.DiscoveryClient("busy-controller")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := served.ServerVersion(); !errors.Is(err, over) {
		t.Errorf("discovery: %v", err)
	}
	for _, action := range core.Actions() {
		if create, ok := action.(clienttesting.CreateAction); ok && create.GetSubresource() == "token" {
			t.Error("a token was asked for")
		}
	}
}
