package server

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	aggregatorinformers "k8s.io/kube-aggregator/pkg/client/informers/externalversions"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
	"k8s.io/metrics/pkg/apis/metrics"
)

// keepMetrics keeps metrics.k8s.io with this server until ctx ends. A metrics-server, which the manifests of many platforms contain, would
// take it away, and finds no kubelet that it can reach.
func (s *simulation) keepMetrics(ctx context.Context, config *rest.Config) error {
	client, err := aggregator.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	name := "v1beta1." + metrics.GroupName
	factory := aggregatorinformers.NewSharedInformerFactoryWithOptions(client, 0, aggregatorinformers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = "metadata.name=" + name
	}))
	services := client.ApiregistrationV1().APIServices()
	keep := func(object any) {
		o, ok := object.(*apiregistrationv1.APIService)
		if !ok || o.Spec.Service == nil {
			return
		}
		at := o.Spec.Service
		if _, err := services.Update(ctx, localMetrics(o), metav1.UpdateOptions{}); err == nil {
			s.config.Log.Warnf("simulated nodes: the APIService %s named the Service %s/%s: this server goes on to serve it, because no other program can reach the nodes", name, at.Namespace, at.Name)
		} else if ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			s.config.Log.Warnf("simulated nodes: keep APIService %s: %v", name, err)
		}
	}
	again := func(object any) {
		o, ok := object.(*apiregistrationv1.APIService)
		if !ok || ctx.Err() != nil {
			return
		}
		o = localMetrics(o)
		o.ObjectMeta = metav1.ObjectMeta{Name: o.Name, Labels: o.Labels}
		if _, err := services.Create(ctx, o, metav1.CreateOptions{}); err != nil && ctx.Err() == nil && !apierrors.IsAlreadyExists(err) {
			s.config.Log.Warnf("simulated nodes: make APIService %s again: %v", name, err)
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: keep, UpdateFunc: func(_, object any) { keep(object) }, DeleteFunc: again}
	if _, err := factory.Apiregistration().V1().APIServices().Informer().AddEventHandler(handler); err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	factory.StartWithContext(ctx)
	return nil
}

// localMetrics returns an APIService as this server's own: a later start without simulated nodes removes it.
func localMetrics(o *apiregistrationv1.APIService) *apiregistrationv1.APIService {
	o = o.DeepCopy()
	o.Spec.Service, o.Spec.CABundle, o.Spec.InsecureSkipTLSVerify = nil, nil, false
	metav1.SetMetaDataLabel(&o.ObjectMeta, autoregister.AutoRegisterManagedLabel, "onstart")
	return o
}
