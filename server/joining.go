package server

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/bootstrap/kubeadm"
	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/panics"
	"github.com/karve-k8s/karve/internal/version"
	"github.com/karve-k8s/karve/server/election"
)

// joining is the part that makes the objects for `kubeadm join`.
type joining struct {
	*plan
	claim   *claim
	store   func() *certs.Store                 // nil until the certificates are issued
	client  func() *rest.Config                 // an administrator's, when the API server serves
	assigns func(context.Context) (bool, error) // whether controllers of this server assign ranges of Pod addresses; nil: there are none
	again   chan struct{}                       // has a value when the objects are to follow: after a reset, and when manifests have changed something
}

// controlPlaneEndpoint returns the host and port of --control-plane-endpoint or its default, or nothing.
func (j *joining) controlPlaneEndpoint() string {
	if j.endpoint == nil {
		return ""
	}
	port := j.endpoint.port
	if port == "" {
		port = strconv.Itoa(j.claim.secure.Addr().(*net.TCPAddr).Port)
	}
	return net.JoinHostPort(j.endpoint.host, port)
}

// nodeURL returns the URL at which nodes reach the API server: the user's endpoint, else the
// advertised address. A server that listens on a loopback address only, and one without any other
// address, can be reached by nodes on this machine only, at that address. With an address that the
// user advertises, something else may forward connections.
func (j *joining) nodeURL() string {
	if e := j.controlPlaneEndpoint(); e != "" {
		return "https://" + e
	}
	secure := j.claim.secure.Addr().(*net.TCPAddr)
	ip := j.advertise.IP()
	if ip == nil || secure.IP.IsLoopback() && j.AdvertiseAddress == "" {
		return j.claim.url()
	}
	return "https://" + net.JoinHostPort(ip.String(), strconv.Itoa(secure.Port))
}

// config returns what the objects for `kubeadm join` depend on. The certificates exist. Nodes that
// find a range of Pod addresses wait for their part of it. So a default that no controller assigns is
// left out; one that the user has named is a fact about the cluster, whoever assigns it.
func (j *joining) config(assigned bool) (*kubeadm.Config, error) {
	bundle, err := j.store().NodeBundle()
	if err != nil {
		return nil, fmt.Errorf("read the authorities for nodes: %w", err)
	}
	pods := j.ClusterCIDR
	if j.podsChosen && !assigned {
		pods = ""
	}
	return &kubeadm.Config{
		Server: j.nodeURL(), Bundle: bundle, ControlPlaneEndpoint: j.controlPlaneEndpoint(), KubernetesVersion: version.Kubernetes,
		ClusterDomain: j.ClusterDomain, ServiceRange: j.ServiceClusterIPRange, PodRange: pods, PodRangeChosen: j.podsChosen,
	}, nil
}

// How long a start waits for the objects at most, how long Karve waits before it tries again, and how often it looks whether its address
// has changed, which is as often as for the endpoints of the kubernetes Service.
const (
	addressCheck      = 10 * time.Second
	joiningStartLimit = 5 * time.Second
	joiningFirstRetry = 100 * time.Millisecond
	joiningLastRetry  = time.Minute
)

// Run makes the objects for `kubeadm join`, and lets them follow this server; again after each
// reset, which may bring objects back that name another server, and after manifests, which may have the DNS. Nothing else of the cluster
// depends on them. So a start waits for them, but not long, and does not fail without them: a
// webhook of the cluster may refuse them until a Pod runs. Of several servers, the one that runs the
// controllers does it: nodes that join then reach a server that runs. One without controllers does not
// (actsForCluster).
func (j *joining) Run(ctx context.Context, ready func()) error {
	ready = sync.OnceFunc(ready)
	timer := time.AfterFunc(joiningStartLimit, ready)
	defer timer.Stop()
	return j.election.Follow(ctx, ready, func(ctx context.Context, term *election.Term) error {
		return j.keep(ctx, term, ready)
	})
}

// keep is Run while this server may act. It calls ready as soon as nothing is to be expected from another try.
func (j *joining) keep(ctx context.Context, term *election.Term, ready func()) error {
	assigned := false
	if j.assigns != nil {
		var err error
		if assigned, err = j.assigns(ctx); err != nil {
			return nil // ctx has ended
		}
	}
	config, err := j.config(assigned)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(term.Fence(j.client()))
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	m := &kubeadm.Maintainer{Config: *config, Client: client}
	told := map[string]bool{} // warnings
	began, failed := time.Now(), false
	for wait := joiningFirstRetry; ; {
		var done kubeadm.Changes
		err := panics.Catch(func() (err error) { done, err = m.Maintain(ctx); return err })
		if ctx.Err() != nil {
			return nil
		}
		j.log(done, told)
		refused := kubeadm.Refused(err)
		if err == nil || refused {
			ready()
		}
		if err == nil {
			if !j.changed(ctx, m) {
				return nil
			}
			wait, began, failed = joiningFirstRetry, time.Now(), false
			continue
		}
		if !failed && (refused || time.Since(began) > joiningStartLimit) {
			failed = true
			j.Log.Warnf("cannot make or update all objects for kubeadm join, trying again: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
		wait = min(2*wait, joiningLastRetry)
	}
}

// changed waits until the objects have to follow something, or ctx ends.
func (j *joining) changed(ctx context.Context, m *kubeadm.Maintainer) bool {
	look := time.NewTicker(addressCheck)
	defer look.Stop()
	for {
		select {
		case <-j.again:
			m.Consistent = true
			return true
		case <-look.C:
			if url := j.nodeURL(); url != m.Config.Server {
				m.Config.Server = url
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

// log says what was done. told has the warnings of earlier calls.
func (j *joining) log(done kubeadm.Changes, told map[string]bool) {
	if len(done.Made) > 0 {
		j.Log.Infof("made the objects that kubeadm join needs: %s; --no-kubeadm-objects keeps them away", strings.Join(done.Made, ", "))
	}
	for _, changed := range done.Changed {
		j.Log.Infof("%s follows this server's addresses, certificates and version", changed)
	}
	for _, err := range done.Unreadable {
		if !told[err.Error()] {
			told[err.Error()] = true
			j.Log.Warn(err)
		}
	}
}

// logNoPodRanges says that a default of --cluster-cidr is not in effect.
func (j *joining) logNoPodRanges(node, pods, chosen string) {
	j.Log.Infof("nodes get no Pod ranges from this server: the Pods of node %s have addresses of %s, which is not in the default range %s; --cluster-cidr names another", node, pods, chosen)
}

// follow lets the objects for `kubeadm join` follow again, soon.
func (j *joining) follow() {
	select {
	case j.again <- struct{}{}:
	default: // it will happen
	}
}
