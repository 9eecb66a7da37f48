package apiserver

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	genericapiserver "k8s.io/apiserver/pkg/server"
	clientgoinformers "k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/transport"

	"github.com/karve-k8s/karve/server/loopback"
)

// useLoopback makes the API server's own clients call its handler through own
// instead of connecting to its listener. Who they are does not change: they
// have upstream's token for them. What wants to take a connection over still
// gets one.
//
// Upstream has made the first of these clients by now, that of the shared
// informers; nothing has been asked with it yet.
func useLoopback(generic *genericapiserver.Config, informers clientgoinformers.SharedInformerFactory, own *loopback.Server) error {
	config := generic.LoopbackClientConfig
	config.WrapTransport = transport.Wrappers(func(connecting http.RoundTripper) http.RoundTripper {
		return &loopback.Transport{Server: own, Upgrade: connecting}
	}, config.WrapTransport)
	made, err := clientOf(informers)
	if err != nil {
		return fmt.Errorf("use loopback: %w", err)
	}
	if made.Transport, err = rest.TransportFor(config); err != nil {
		return fmt.Errorf("use loopback: %w", err)
	}
	return nil
}

// clientOf is the HTTP client behind informers, which all of a clientset's
// groups share. The factory shows its clientset to who adds an informer: here
// that of namespaces, which admission would add.
func clientOf(informers clientgoinformers.SharedInformerFactory) (*http.Client, error) {
	var client kubernetes.Interface
	informers.InformerFor(&corev1.Namespace{}, func(c kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		client = c
		return coreinformers.NewNamespaceInformer(c, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	})
	if client == nil {
		return nil, errors.New("upstream has made the informer of namespaces already")
	}
	rc, ok := client.CoreV1().RESTClient().(*rest.RESTClient)
	if !ok {
		return nil, fmt.Errorf("upstream's client is a %T", client.CoreV1().RESTClient())
	}
	return rc.Client, nil
}
