package apiserver

import (
	"errors"
	"strings"
	"sync"

	apiextensionsscheme "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/scheme"
	apiextensionsinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	registrationscheme "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/scheme"
	registrationinformers "k8s.io/kube-aggregator/pkg/client/informers/externalversions"

	"github.com/karve-k8s/karve/server/apiserver/replacements"
	"github.com/karve-k8s/karve/server/sharedinformers"
)

// Followers returns the informers of the API server, including those that other parts of this
// process share.
func (s *Server) Followers() ([]sharedinformers.Informer, error) {
	const whose = "API server"
	all, err := sharedinformers.Of(whose, scheme.Scheme, replacements.StartedTypes(s.informers), func(o runtime.Object) cache.SharedIndexInformer {
		return s.informers.InformerFor(o, nil)
	})
	var more []sharedinformers.Informer
	if f := s.definitions; f != nil && err == nil {
		more, err = sharedinformers.Of(whose, apiextensionsscheme.Scheme, replacements.StartedTypes(f), func(o runtime.Object) cache.SharedIndexInformer {
			return f.InformerFor(o, nil)
		})
		all = append(all, more...)
	}
	if f := s.registrations; f != nil && err == nil {
		more, err = sharedinformers.Of(whose, registrationscheme.Scheme, replacements.StartedTypes(f), func(o runtime.Object) cache.SharedIndexInformer {
			return f.InformerFor(o, nil)
		})
		all = append(all, more...)
	}
	return all, err
}

// otherFactories are the factories for types outside of Kubernetes' own scheme.
type otherFactories struct {
	definitions   apiextensionsinformers.SharedInformerFactory
	registrations registrationinformers.SharedInformerFactory
}

// ErrUnknownKey means that no API that has been served so far stores objects under the key.
var ErrUnknownKey = errors.New("not a key of an API object")

// ObjectOf returns the resource of the object that is stored under key, and the object's key
// in an informer's store.
func (s *Server) ObjectOf(key string) (resource schema.GroupResource, object string, err error) {
	return s.prefixes.objectOf(key)
}

// prefixes maps storage prefixes to the resources that are stored there.
type prefixes struct {
	mu sync.Mutex
	of map[string]schema.GroupResource
}

func (p *prefixes) add(prefix string, resource schema.GroupResource) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of[prefix] = resource
}

func (p *prefixes) objectOf(key string) (schema.GroupResource, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for end := strings.LastIndexByte(key, '/'); end > 0; end = strings.LastIndexByte(key[:end], '/') {
		if resource, ok := p.of[key[:end]]; ok {
			return resource, key[end+1:], nil
		}
	}
	return schema.GroupResource{}, "", ErrUnknownKey
}
