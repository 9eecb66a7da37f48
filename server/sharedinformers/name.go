package sharedinformers

import "k8s.io/client-go/tools/cache"

// Name reserves the name of a component, under which client-go publishes the metrics of its
// informers (informer_queued_items and others, k8s.io/client-go tools/cache/identity.go).
// The component releases it when its informers have stopped.
//
// Name returns nil, with which there are no metrics, if another server of this process has the
// name.
func Name(component string) *cache.InformerName {
	name, err := cache.NewInformerName(component)
	if err != nil {
		return nil
	}
	return name
}
