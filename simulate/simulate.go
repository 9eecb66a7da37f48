// Package simulate has nodes without machines: Node objects that are ready, and Pods that
// run on them as far as any client of the API can see. It does to the API what a kubelet
// does, with a kubelet's identity: it registers Nodes, renews their leases, brings Pods to
// where their specification and their annotations want them, and ends those that are
// deleted.
//
// simulate.go starts and stops it. nodes.go handles Nodes, and pods.go Pods. Three files
// decide what happens to a Pod, and have neither a client nor a clock: life.go (the Pod),
// container.go (each container) and annotations.go (what users want; defaults.go and listen.go have
// parts of that). kubelet.go answers requests to a node, and streams.go those that take over a
// connection. DESIGN.md has the decisions.
package simulate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	toolsrecord "k8s.io/client-go/tools/record"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-helpers/nodedeclaredfeatures"
	nodedeclaredtypes "k8s.io/component-helpers/nodedeclaredfeatures/types"

	"k8s.io/kubernetes/pkg/features"

	"github.com/karve-k8s/karve/internal/panics"
	"github.com/karve-k8s/karve/simulate/connections"
	"github.com/karve-k8s/karve/simulate/groups"
	"github.com/karve-k8s/karve/simulate/volumes"
)

// Config is what a simulation needs.
type Config struct {
	// Nodes is the number of nodes, up to [Most].
	Nodes int
	// Groups say of what kind the nodes are, in order. Nodes beyond them are of the usual kind.
	Groups []groups.Group
	// Version is the version of the kubelets, such as v1.37.2.
	Version string
	// IPv6 says for each family of addresses, in order, whether it is IPv6.
	IPv6 []bool
	// Grace is how long nodes may be silent; 0 is 50 seconds, upstream's default.
	Grace time.Duration
	// PodCIDRs says that a controller writes the ranges of Pod addresses into the Nodes.
	PodCIDRs bool
	// Client is an administrator's, because it impersonates nodes.
	Client *rest.Config
	// Defaults are what Pods do whose annotations do not say it. Run sets the Namespaces in it.
	Defaults Defaults
	// PodInformer, NodeInformer and NamespaceInformer cover the whole cluster, and are running.
	PodInformer, NodeInformer, NamespaceInformer cache.SharedIndexInformer
	// ClaimInformer and VolumeInformer do the same for persistent volumes.
	ClaimInformer, VolumeInformer cache.SharedIndexInformer
	// Kubelet answers requests to nodes. If it is nil, nothing does.
	Kubelet *Kubelet
	// Notice tells users what they should know.
	Notice func(string)
	// Log receives what goes wrong.
	Log *logrus.Logger
}

// The number of workers of the two kinds. They wait for answers, and the datastore answers
// many at a time.
const (
	podWorkers   = 16
	nodeWorkers  = 8
	claimWorkers = 2
)

// simulation is a running simulation.
type simulation struct {
	Config
	interval           time.Duration // between two renewals of a lease
	core, coordination rest.Interface
	nodes              *nodeSet
	adopting           sync.Mutex
	nextIndex          int      // of the last node that somebody else has made
	declared           []string // features of the nodes
	addresses          *addresses
	connections        connections.Set
	events             toolsrecord.EventBroadcaster
	provisioner        volumes.Provisioner
	pods, claims       workqueue.TypedRateLimitingInterface[types.NamespacedName] // claims has volumes, too
	due                workqueue.TypedRateLimitingInterface[string]               // nodes

	mu      sync.Mutex
	records map[types.NamespacedName]*record
}

// Run registers the nodes, calls ready, and simulates them until ctx ends. Then everything
// stays as it is, as with stopped kubelets.
func Run(ctx context.Context, c Config, ready func()) error {
	s := &simulation{Config: c, interval: renewInterval(c.Grace), nodes: newNodeSet(), nextIndex: Most, addresses: newAddresses(), records: map[types.NamespacedName]*record{}}
	s.Defaults.Namespaces = c.NamespaceInformer.GetStore()
	if v, err := version.ParseSemantic(c.Version); err == nil {
		s.declared = nodedeclaredfeatures.DefaultFramework.DiscoverNodeFeatures(&nodedeclaredtypes.NodeConfiguration{FeatureGates: gates{}, Version: v})
		// The API server translates WebSockets for these nodes, and clients see no difference.
		s.declared = slices.DeleteFunc(s.declared, func(name string) bool { return name == string(features.ExtendWebSocketsToKubelet) })
	}
	client := rest.CopyConfig(c.Client)
	client.ContentType, client.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	clients, err := kubernetes.NewForConfig(rest.AddUserAgent(client, "simulated-kubelet"))
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	s.core, s.coordination = clients.CoreV1().RESTClient(), clients.CoordinationV1().RESTClient()
	s.events = toolsrecord.NewBroadcaster(toolsrecord.WithContext(ctx))
	defer s.events.Shutdown()
	s.events.StartRecordingToSink(eventSink{s.core})
	s.provisioner = volumes.Provisioner{Core: s.core, Storage: clients.StorageV1().RESTClient(), Claims: c.ClaimInformer.GetStore(),
		Volumes: c.VolumeInformer.GetStore(), Recorder: s.recorder(volumes.Name, "")}
	for i := range c.Nodes {
		n := newNode(i, c.IPv6)
		s.nodes.set(n)
	}
	if c.Kubelet != nil {
		c.Kubelet.open(s)
		defer c.Kubelet.close()
	}

	s.pods = workqueue.NewTypedRateLimitingQueue(retries[types.NamespacedName]())
	s.claims = workqueue.NewTypedRateLimitingQueue(retries[types.NamespacedName]())
	s.due = workqueue.NewTypedRateLimitingQueue(retries[string]())
	shutDown := func() { s.pods.ShutDown(); s.claims.ShutDown(); s.due.ShutDown() }
	defer shutDown()
	var synced []cache.InformerSynced
	for _, w := range []struct {
		informer cache.SharedIndexInformer
		events   cache.ResourceEventHandler
	}{{c.NamespaceInformer, s.namespaceEvents()}, {c.NodeInformer, s.nodeEvents()}, {c.PodInformer, s.podEvents()}, {c.ClaimInformer, s.provisioner.Events(s.claims.Add)}, {c.VolumeInformer, s.provisioner.Events(s.claims.Add)}} {
		handle, err := w.informer.AddEventHandler(w.events)
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		defer w.informer.RemoveEventHandler(handle)
		synced = append(synced, handle.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	s.takeUpPods()
	if err := errors.Join(s.takeUpNodes(ctx), s.provisioner.MakeDefaultClass(ctx)); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}

	var workers sync.WaitGroup
	defer workers.Wait()
	defer shutDown()
	for range podWorkers {
		workers.Go(func() { work(ctx, s.pods, s.syncPod, s.complain) })
	}
	for range nodeWorkers {
		workers.Go(func() { work(ctx, s.due, s.syncNode, s.complain) })
	}
	for range claimWorkers {
		workers.Go(func() { work(ctx, s.claims, s.provisioner.Sync, s.complain) })
	}
	ready()
	<-ctx.Done()
	return nil
}

// gates are the server's, which a kubelet of the same cluster would have.
type gates struct{}

func (gates) Enabled(name string) bool {
	return utilfeature.DefaultFeatureGate.Enabled(featuregate.Feature(name))
}

func retries[T comparable]() workqueue.TypedRateLimiter[T] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[T](20*time.Millisecond, 10*time.Second)
}

// work handles what is in a queue until the queue shuts down. do returns after which time
// to call it again; 0 is when there is a reason to.
func work[T comparable](ctx context.Context, q workqueue.TypedRateLimitingInterface[T], do func(context.Context, T) (time.Duration, error), complain func(error)) {
	for {
		item, shutdown := q.Get()
		if shutdown {
			return
		}
		if ctx.Err() != nil {
			q.Done(item)
			continue
		}
		var again time.Duration
		err := panics.Catch(func() (err error) { again, err = do(ctx, item); return err })
		if errors.Is(err, panics.Err) { // otherwise nothing names the object
			err = fmt.Errorf("%v: %w", item, err)
		}
		switch {
		case err == nil:
			q.Forget(item)
			if again > 0 {
				q.AddAfter(item, again)
			}
		case ctx.Err() == nil:
			// One failure is not reported: a Pod whose labels have just changed, for
			// example, cannot be written with the old labels. Nor is another client that was faster.
			if errors.Is(err, panics.Err) || !apierrors.IsConflict(err) && q.NumRequeues(item) > 0 {
				complain(err)
			}
			q.AddRateLimited(item)
		}
		q.Done(item)
	}
}

func (s *simulation) complain(err error) { s.Log.Warnf("simulated nodes: %v; trying again", err) }

// as makes a request the node's own: it is authorized and admitted like a kubelet's.
func as(r *rest.Request, node string) *rest.Request {
	return r.SetHeader(transport.ImpersonateUserHeader, "system:node:"+node).SetHeader(transport.ImpersonateGroupHeader, "system:nodes")
}

// rangesOf returns the ranges of a Node's Pod addresses.
func rangesOf(n *corev1.Node) (ranges []netip.Prefix) {
	for _, cidr := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(cidr); err == nil {
			ranges = append(ranges, p)
		}
	}
	return ranges
}
