package replacements

import (
	"net/http"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/controller-manager/pkg/clientbuilder"
)

// FencedBuilder builds clients that fail as soon as the term is over. A client of upstream's DynamicControllerClientBuilder first asks
// for a token. At each request it tries that for 3.5 seconds, whatever the context says (tokenSourceImpl), so a
// few requests in a row take longer than --controller-shutdown-timeout. And it ends the process if ClientOrDie finds no service account.
type FencedBuilder struct {
	Of    clientbuilder.ControllerClientBuilder // not embedded: each of its methods needs the fence
	Fence func(*rest.Config) *rest.Config
}

func (b FencedBuilder) Config(name string) (*rest.Config, error) {
	config, err := b.Of.Config(name)
	if err != nil {
		return nil, err
	}
	return b.Fence(config), nil
}

func (b FencedBuilder) Client(name string) (kubernetes.Interface, error) {
	config, err := b.Config(name)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// DiscoveryClient has upstream's limits (DynamicControllerClientBuilder.DiscoveryClient).
func (b FencedBuilder) DiscoveryClient(name string) (discovery.DiscoveryInterface, error) {
	config, err := b.Config(name)
	if err != nil {
		return nil, err
	}
	limited := rest.CopyConfig(config)
	limited.QPS, limited.Burst = 20, 200
	return kubernetes.NewForConfig(limited)
}

// ConfigOrDie returns a configuration whose requests fail if there is an error.
func (b FencedBuilder) ConfigOrDie(name string) *rest.Config {
	config, err := b.Config(name)
	if err != nil {
		return &rest.Config{Transport: failing{err}}
	}
	return config
}

// ClientOrDie is like ConfigOrDie.
func (b FencedBuilder) ClientOrDie(name string) kubernetes.Interface {
	client, err := b.Client(name)
	if err != nil {
		return kubernetes.NewForConfigOrDie(&rest.Config{Transport: failing{err}}) // this one is valid
	}
	return client
}

// DiscoveryClientOrDie is like ConfigOrDie.
func (b FencedBuilder) DiscoveryClientOrDie(name string) discovery.DiscoveryInterface {
	client, err := b.DiscoveryClient(name)
	if err != nil {
		return discovery.NewDiscoveryClientForConfigOrDie(&rest.Config{Transport: failing{err}})
	}
	return client
}

type failing struct{ err error }

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }
