package simulate

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"path"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	toolsrecord "k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// newSimulation returns a simulation of one node that does not run, and what it writes. Its informers have
// only what a test adds.
func newSimulation(t *testing.T) (s *simulation, written *[]string) {
	t.Helper()
	written = new([]string)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://karve.invalid", Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		*written = append(*written, r.Method+" "+r.URL.Path)
		if classes, name := path.Split(r.URL.Path); path.Base(classes) == "storageclasses" {
			body, err := json.Marshal(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: name})
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body))}, err
		}
		return &http.Response{StatusCode: http.StatusConflict, Body: http.NoBody}, nil
	})})
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(0, []bool{false})
	s = &simulation{
		Config: Config{
			Nodes: 1, IPv6: []bool{false},
			PodInformer:       cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, nil),
			NodeInformer:      cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Node{}, 0, nil),
			NamespaceInformer: cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Namespace{}, 0, nil),
			ClaimInformer:     cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.PersistentVolumeClaim{}, 0, nil),
			VolumeInformer:    cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.PersistentVolume{}, 0, nil),
		},
		core: client.CoreV1().RESTClient(), coordination: client.CoordinationV1().RESTClient(), nodes: newNodeSet(), addresses: newAddresses(), records: map[types.NamespacedName]*record{}, events: toolsrecord.NewBroadcaster(),
		pods: workqueue.NewTypedRateLimitingQueue(retries[types.NamespacedName]()), claims: workqueue.NewTypedRateLimitingQueue(retries[types.NamespacedName]()), due: workqueue.NewTypedRateLimitingQueue(retries[string]()),
	}
	s.nodes.set(n)
	t.Cleanup(func() { s.pods.ShutDown(); s.claims.ShutDown(); s.due.ShutDown() })
	s.Defaults.Namespaces = s.NamespaceInformer.GetStore()
	return s, written
}

func add(t *testing.T, informer cache.SharedIndexInformer, object any) {
	t.Helper()
	if err := informer.GetStore().Add(object); err != nil {
		t.Fatal(err)
	}
}

// The informers of Pods and of Namespaces are independent, so a Pod may be seen before its Namespace, whose
// annotations say how it begins.
func TestAPodWaitsForItsNamespace(t *testing.T) {
	s, written := newSimulation(t)
	p := newPod(corev1.RestartPolicyAlways)
	p.Spec.NodeName, p.Spec.HostNetwork = Name(0), true
	add(t, s.PodInformer, p)
	key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	if again, err := s.syncPod(t.Context(), key); err != nil || again != 0 || len(*written) > 0 {
		t.Errorf("without its Namespace: wrote %q, again after %v, %v; want nothing", *written, again, err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.Namespace, Annotations: map[string]string{StartDelay: "1h"}}}
	add(t, s.NamespaceInformer, ns)
	s.namespaceEvents().OnAdd(ns, false)
	if s.pods.Len() != 1 {
		t.Fatalf("%d Pods are queued when the Namespace is there, want one", s.pods.Len())
	}
	if _, err := s.syncPod(t.Context(), key); !apierrors.IsConflict(err) || len(*written) != 1 {
		t.Errorf("with its Namespace: wrote %q, %v; want the status", *written, err)
	}

	other := newPod(corev1.RestartPolicyAlways)
	other.Namespace, other.Spec.NodeName, other.DeletionTimestamp = "gone", Name(0), &metav1.Time{}
	add(t, s.PodInformer, other)
	if _, err := s.syncPod(t.Context(), types.NamespacedName{Namespace: "gone", Name: other.Name}); !apierrors.IsConflict(err) || len(*written) != 2 || !strings.HasPrefix((*written)[1], "PUT ") {
		t.Errorf("a Pod that is being deleted: wrote %q, %v; want how it ended", *written, err)
	}
}

// A node that is down is silent, with its Pods, from the start on.
func TestNothingAnswersOnANodeThatIsDown(t *testing.T) {
	s, _ := newSimulation(t)
	s.Nodes = 1
	s.Defaults.Targets = Targets{}
	k := &Kubelet{}
	k.open(s)
	defer k.close()
	p := newPod(corev1.RestartPolicyAlways)
	p.Spec.NodeName, p.Status.PodIP = Name(0), "100.64.0.2"
	add(t, s.PodInformer, p)
	key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	if _, _, err := s.listens(key); err != nil {
		t.Errorf("while the node is up: %v", err)
	}
	add(t, s.NodeInformer, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: Name(0), Labels: map[string]string{NodeLabel: ""}, Annotations: map[string]string{NodeDown: "true"}}})
	if err := s.takeUpNodes(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, _, listens := s.listens(key)
	_, dialed := k.Dial(nil)(t.Context(), "tcp", nodeAddress(0, false).String()+":10250")
	for _, err := range []error{listens, dialed} {
		if err == nil || !strings.Contains(err.Error(), "is down") {
			t.Errorf("while the node is down: got %v", err)
		}
	}
}
