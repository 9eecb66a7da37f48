package replacements

import (
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	endpointsrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/internal/fence"
	"github.com/karve-k8s/karve/kine"
)

func TestStorageClientIsUpstreams(t *testing.T) {
	if upstreamsStorageClient == nil {
		t.Fatal("upstreamsStorageClient is nil: factory.newETCD3Client has another name, look for it")
	}
}

// The client of a real etcd also refuses writes that were taken back.
func TestUpstreamsClientIsFenced(t *testing.T) {
	before := upstreamsStorageClient
	defer func() { upstreamsStorageClient = before }()
	upstreamsStorageClient = func(c storagebackend.TransportConfig) (*kubernetes.Client, error) { // upstream's waits for etcd
		return kubernetes.New(clientv3.Config{Endpoints: c.ServerList})
	}
	client, err := StorageClient(storagebackend.TransportConfig{ServerList: []string{"unix:" + t.TempDir() + "/nobody"}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	over := errors.New("over")
	ctx := fence.With(t.Context(), func() (time.Duration, error) { return time.Minute, over })
	if _, err := client.Kubernetes.OptimisticPut(ctx, "/a", nil, 0, kubernetes.PutOptions{}); !errors.Is(err, over) {
		t.Errorf("a put that was taken back: got %v, want %v", err, over)
	}
	if _, err := client.Kubernetes.OptimisticDelete(ctx, "/a", 1, kubernetes.DeleteOptions{}); !errors.Is(err, over) {
		t.Errorf("a delete that was taken back: got %v, want %v", err, over)
	}
}

// The chain's storage clients reach the engine, and the right one if there are several.
func TestFactoryReachesTheEngine(t *testing.T) {
	for range 2 {
		engine, err := datastore.OpenEngine(nil, datastore.Options{Durability: datastore.Memory})
		if err != nil {
			t.Fatal(err)
		}
		defer engine.Close()
		shim, err := kine.Serve(t.Context(), engine, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer shim.Close()
		if shim.LocalEndpoint() == "" || strings.HasPrefix(shim.LocalEndpoint(), "unix:") {
			t.Fatalf("endpoint %q is not a local one", shim.LocalEndpoint())
		}
		useStorage(t, engine, shim.LocalEndpoint())
	}
}

func useStorage(t *testing.T, engine *datastore.Engine, endpoint string) {
	t.Helper()
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), "application/json")
	v1 := corev1.SchemeGroupVersion
	config := storagebackend.NewDefaultConfig("/registry", scheme.Codecs.CodecForVersions(info.Serializer, info.Serializer, v1, v1))
	config.Transport.ServerList = []string{endpoint}
	store, destroy, err := factory.Create(*config.ForResource(schema.GroupResource{Resource: "configmaps"}),
		func() runtime.Object { return &corev1.ConfigMap{} }, func() runtime.Object { return &corev1.ConfigMapList{} }, "/configmaps/")
	if err != nil {
		t.Fatal(err)
	}
	defer destroy()

	ctx := endpointsrequest.WithLatencyTrackers(t.Context())
	made := &corev1.ConfigMap{}
	object := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "x"}}
	if err := store.Create(ctx, "/configmaps/x/a", object, made, 0); err != nil {
		t.Fatal(err)
	}
	if latency, _ := endpointsrequest.LatencyTrackersFrom(ctx); latency == nil || latency.StorageTracker.GetLatency() == 0 {
		t.Error("the latency of storage was not recorded")
	}
	found, err := engine.Range(ctx, datastore.RangeRequest{Key: "/registry/configmaps/x/a"})
	if err != nil || len(found.KVs) != 1 || !strings.Contains(string(found.KVs[0].Value), "ConfigMap") {
		t.Errorf("the engine has %+v, %v, want the object", found, err)
	}

	over := errors.New("over")
	late := fence.With(ctx, func() (time.Duration, error) { return time.Minute, over })
	other := object.DeepCopy()
	other.Name = "b"
	if err := store.Create(late, "/configmaps/x/b", other, &corev1.ConfigMap{}, 0); !errors.Is(err, over) {
		t.Errorf("a create that was taken back: got %v, want %v", err, over)
	}
	if err := store.Delete(late, "/configmaps/x/a", &corev1.ConfigMap{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); !errors.Is(err, over) {
		t.Errorf("a delete that was taken back: got %v, want %v", err, over)
	}
	if found, err := engine.Range(ctx, datastore.RangeRequest{Key: "/registry/configmaps/", End: "/registry/configmaps0"}); err != nil || len(found.KVs) != 1 {
		t.Errorf("the engine has %+v, %v, want one object", found, err)
	}

	events, err := store.Watch(ctx, "/configmaps/", storage.ListOptions{ResourceVersion: made.ResourceVersion, Recursive: true, ProgressNotify: true, Predicate: storage.Everything})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	if err := store.Delete(ctx, "/configmaps/x/a", &corev1.ConfigMap{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := <-events.ResultChan(); e.Type != watch.Deleted {
		t.Errorf("got %+v, want the deletion", e)
	}
	if err := store.RequestWatchProgress(ctx); err != nil {
		t.Fatal(err)
	}
	if e := <-events.ResultChan(); e.Type != watch.Bookmark {
		t.Errorf("got %+v, want the progress that was asked for", e)
	}

	// Without this, consistent lists would not come from the API server's cache.
	eventually.True(t, "RequestWatchProgress is supported", func() bool {
		return etcdfeature.DefaultFeatureSupportChecker.Supports(storage.RequestWatchProgress)
	})
	stop := make(chan struct{})
	defer close(stop)
	healthy, err := factory.CreateHealthCheck(*config, stop)
	if err != nil {
		t.Fatal(err)
	}
	eventually.Nil(t, "health check", healthy)
	monitor, err := factory.CreateMonitor(*config)
	if err != nil {
		t.Fatal(err)
	}
	defer monitor.Close()
	if m, err := monitor.Monitor(ctx); err != nil || m.Size == 0 {
		t.Errorf("size: %+v, %v, want one", m, err)
	}
}

func TestEtcdLoggerIsUpstreams(t *testing.T) {
	if upstreamsEtcdLogger == nil {
		t.Fatal("etcdLogger is nil: upstream's init no longer sets factory.etcd3ClientLogger, look for its new name")
	}
}
