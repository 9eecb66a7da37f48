package server

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	aggregatorinformers "k8s.io/kube-aggregator/pkg/client/informers/externalversions"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// metricsService is the name of the APIService of metrics.k8s.io.
var metricsService = v1beta1.SchemeGroupVersion.Version + "." + v1beta1.GroupName

// keepMetrics keeps metrics.k8s.io with this server until ctx ends. A metrics-server, which the manifests of many platforms contain, would
// take it away, and finds no kubelet that it can reach.
func (s *simulation) keepMetrics(ctx context.Context, config *rest.Config) error {
	client, err := aggregator.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	factory := aggregatorinformers.NewSharedInformerFactoryWithOptions(client, 0, aggregatorinformers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = "metadata.name=" + metricsService
	}))
	changed := make(chan struct{}, 1)
	look := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, is any) { look(is) }, DeleteFunc: look}
	if _, err := factory.Apiregistration().V1().APIServices().Informer().AddEventHandler(handler); err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	factory.StartWithContext(ctx)
	go wait.UntilWithContext(ctx, func(ctx context.Context) {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		if err := s.takeMetricsBack(ctx, client); err != nil && ctx.Err() == nil {
			look(nil) // again
			s.config.Log.Warnf("simulated nodes: keep APIService %s: %v", metricsService, err)
		}
	}, time.Second)
	return nil
}

// takeMetricsBack makes the APIService this server's own. It deletes one that names a Service, instead of changing it: the aggregator would
// go on to ask the Service for its resources, and discovery would fail (kube-aggregator, pkg/apiserver/handler_discovery.go). For the same
// reason it makes the new one only when the aggregator has forgotten the old.
func (s *simulation) takeMetricsBack(ctx context.Context, client aggregator.Interface) error {
	services := client.ApiregistrationV1().APIServices()
	o, err := services.Get(ctx, metricsService, metav1.GetOptions{})
	if err == nil && o.Spec.Service == nil {
		return nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err == nil {
		at := o.Spec.Service
		err := services.Delete(ctx, o.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion}})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		s.config.Notice(fmt.Sprintf("simulated nodes: the APIService %s named the Service %s/%s. This server goes on to serve it, because no other program can reach the nodes", metricsService, at.Namespace, at.Name))
	}
	if err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) {
		_, _, err := client.Discovery().ServerGroupsAndResources()
		failed, _ := discovery.GroupDiscoveryFailedErrorGroups(err)
		_, stale := failed[v1beta1.SchemeGroupVersion]
		return !stale, nil
	}); err != nil {
		return fmt.Errorf("discovery still fails: %w", err)
	}
	own := &apiregistrationv1.APIService{
		// A later start without simulated nodes removes an object with this label.
		ObjectMeta: metav1.ObjectMeta{Name: metricsService, Labels: map[string]string{autoregister.AutoRegisterManagedLabel: "onstart"}},
		Spec:       apiregistrationv1.APIServiceSpec{Group: v1beta1.GroupName, Version: v1beta1.SchemeGroupVersion.Version, GroupPriorityMinimum: 100, VersionPriority: 100},
	}
	_, err = services.Create(ctx, own, metav1.CreateOptions{})
	return err
}
