package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"github.com/karve-k8s/karve/bootstrap/kubeadm"
	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/panics"
	"github.com/karve-k8s/karve/internal/version"
	"github.com/karve-k8s/karve/server/election"
)

// controlPlaneEndpoint returns the host and port of --control-plane-endpoint or its default, or nothing.
func (s *controlPlane) controlPlaneEndpoint() string {
	if s.endpoint == nil {
		return ""
	}
	port := s.endpoint.port
	if port == "" {
		port = strconv.Itoa(s.claim.secure.Addr().(*net.TCPAddr).Port)
	}
	return net.JoinHostPort(s.endpoint.host, port)
}

// nodeURL returns the URL at which nodes reach the API server: the user's endpoint, else the
// advertised address. A server that listens on a loopback address only, and one without any other
// address, can be reached by nodes on this machine only, at that address. With an address that the
// user advertises, something else may forward connections.
func (s *controlPlane) nodeURL() string {
	if e := s.controlPlaneEndpoint(); e != "" {
		return "https://" + e
	}
	secure := s.claim.secure.Addr().(*net.TCPAddr)
	ip := s.advertise.IP()
	if ip == nil || secure.IP.IsLoopback() && s.AdvertiseAddress == "" {
		return s.claim.url()
	}
	return "https://" + net.JoinHostPort(ip.String(), strconv.Itoa(secure.Port))
}

// joining returns what the objects for `kubeadm join` depend on. The certificates exist. Nodes that
// find a range of Pod addresses wait for their part of it. So a default that no controller assigns is
// left out; one that the user has named is a fact about the cluster, whoever assigns it.
func (s *controlPlane) joining(assigned bool) (*kubeadm.Config, error) {
	bundle, err := s.certificates.Store().NodeBundle()
	if err != nil {
		return nil, fmt.Errorf("read the authorities for nodes: %w", err)
	}
	pods := s.ClusterCIDR
	if s.podsChosen && !assigned {
		pods = ""
	}
	return &kubeadm.Config{
		Server: s.nodeURL(), Bundle: bundle, ControlPlaneEndpoint: s.controlPlaneEndpoint(), KubernetesVersion: version.Kubernetes,
		ClusterDomain: s.ClusterDomain, ServiceRange: s.ServiceClusterIPRange, PodRange: pods, PodRangeChosen: s.podsChosen,
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

// maintainJoining makes the objects for `kubeadm join`, and lets them follow this server; again after each
// reset, which may bring objects back that name another server, and after manifests, which may have the DNS. Nothing else of the cluster
// depends on them. So a start waits for them, but not long, and does not fail without them: a
// webhook of the cluster may refuse them until a Pod runs. Of several servers, the one that runs the
// controllers does it: nodes that join then reach a server that runs. One without controllers does not
// (actsForCluster).
func (s *controlPlane) maintainJoining(ctx context.Context, ready func()) error {
	ready = sync.OnceFunc(ready)
	var timed sync.WaitGroup
	timed.Add(1)
	timer := time.AfterFunc(joiningStartLimit, func() { defer timed.Done(); ready() })
	defer func() {
		if timer.Stop() {
			timed.Done()
		}
		timed.Wait()
	}()
	return s.election.Follow(ctx, ready, func(ctx context.Context, term *election.Term) error {
		return s.keepJoining(ctx, term, ready)
	})
}

// keepJoining is maintainJoining while this server may act.
func (s *controlPlane) keepJoining(ctx context.Context, term *election.Term, ready func()) error {
	assigned := false
	if s.controlling != nil {
		var err error
		if assigned, err = s.controlling.AssignsPodRanges(ctx); err != nil {
			return nil // ctx has ended
		}
	}
	config, err := s.joining(assigned)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(term.Fence(s.clients().Config(kubeadm.Component, certs.Admin)))
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	maintainer := kubeadm.Maintainer{Config: *config, Client: client}
	told := map[string]bool{} // warnings
	look := time.NewTicker(addressCheck)
	defer look.Stop()
	for {
		s.maintainOnce(ctx, &maintainer, told, ready)
		for same := true; same; {
			select {
			case <-s.followAgain:
				maintainer.Consistent, same = true, false
			case <-look.C:
				url := s.nodeURL()
				same, maintainer.Config.Server = url == maintainer.Config.Server, url
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// maintainOnce tries until nothing is left to do. It calls ready as soon as nothing is to be expected
// from another try.
func (s *controlPlane) maintainOnce(ctx context.Context, m *kubeadm.Maintainer, told map[string]bool, ready func()) {
	began, failed := time.Now(), false
	for wait := joiningFirstRetry; ; wait = min(2*wait, joiningLastRetry) {
		var done kubeadm.Changes
		err := panics.Catch(func() (err error) { done, err = m.Maintain(ctx); return err })
		if ctx.Err() != nil {
			return
		}
		s.logJoining(done, told)
		refused := kubeadm.Refused(err)
		if err == nil || refused {
			ready()
		}
		if err == nil {
			return
		}
		if !failed && (refused || time.Since(began) > joiningStartLimit) {
			failed = true
			s.Log.Warnf("cannot make or update all objects for kubeadm join, trying again: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// logJoining says what was done. told has the warnings of earlier calls.
func (s *controlPlane) logJoining(done kubeadm.Changes, told map[string]bool) {
	if len(done.Made) > 0 {
		s.Log.Infof("made the objects that kubeadm join needs: %s; --no-kubeadm-objects keeps them away", strings.Join(done.Made, ", "))
	}
	for _, changed := range done.Changed {
		s.Log.Infof("%s follows this server's addresses, certificates and version", changed)
	}
	for _, err := range done.Unreadable {
		if !told[err.Error()] {
			told[err.Error()] = true
			s.Log.Warn(err)
		}
	}
}

// knownPodRange returns the range of Pod addresses that nodes are told when they join, or nothing.
func (s *controlPlane) knownPodRange(ctx context.Context) (string, error) {
	client, err := kubernetes.NewForConfig(s.adminClient())
	if err != nil {
		return "", fmt.Errorf("create client: %w", err)
	}
	networking, err := kubeadm.Networking(ctx, client)
	if apierrors.IsNotFound(err) || errors.Is(err, kubeadm.ErrUnreadable) {
		return "", nil
	}
	return networking.PodSubnet, err
}

// logNoPodRanges says that a default of --cluster-cidr is not in effect.
func (s *controlPlane) logNoPodRanges(node, pods, chosen string) {
	if pods != "" {
		s.Log.Infof("nodes get no Pod ranges from this server: the Pods of node %s have addresses of %s, which is not in the default range %s; --cluster-cidr names another", node, pods, chosen)
		return
	}
	s.Log.Infof("nodes get no Pod ranges from this server: node %s has none and is older than the default range; --cluster-cidr %s gives each node a part of it, for good", node, chosen)
}

// joiningAgain lets the objects for `kubeadm join` follow again, soon.
func (s *controlPlane) joiningAgain() {
	select {
	case s.followAgain <- struct{}{}:
	default: // it will happen
	}
}
