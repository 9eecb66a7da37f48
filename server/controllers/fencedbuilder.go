package controllers

import (
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/controller-manager/pkg/clientbuilder"
)

// fencedBuilder builds clients that fail as soon as the term is over. A client of upstream's DynamicControllerClientBuilder first asks
// for a token. At each request it tries that for 3.5 seconds, whatever the context says (tokenSourceImpl), so a
// few requests in a row take longer than --controller-shutdown-timeout.
type fencedBuilder struct {
	clientbuilder.ControllerClientBuilder
	fence func(*rest.Config) *rest.Config
}

func (b fencedBuilder) Config(name string) (*rest.Config, error) {
	config, err := b.ControllerClientBuilder.Config(name)
	if err != nil {
		return nil, err
	}
	return b.fence(config), nil
}

func (b fencedBuilder) Client(name string) (kubernetes.Interface, error) {
	config, err := b.Config(name)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// DiscoveryClient has upstream's limits (DynamicControllerClientBuilder.DiscoveryClient).
func (b fencedBuilder) DiscoveryClient(name string) (discovery.DiscoveryInterface, error) {
	config, err := b.Config(name)
	if err != nil {
		return nil, err
	}
	limited := rest.CopyConfig(config)
	limited.QPS, limited.Burst = 20, 200
	return kubernetes.NewForConfig(limited)
}
