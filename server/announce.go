package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/server/certificates"
	"github.com/karve-k8s/karve/server/lifecycle"
	"github.com/karve-k8s/karve/server/page"
	"github.com/karve-k8s/karve/server/ports"
)

// setKubeconfigAside takes the kubeconfig of the last start away, whose presence means that the cluster answers. putBack
// gives it its name again, unless this start has written another one.
func setKubeconfigAside(dataDir string) (putBack func(), err error) {
	path := certificates.KubeconfigPath(dataDir)
	if err := os.Rename(path, path+certs.AsideSuffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the kubeconfig of the last start: %w", err)
	}
	return func() { _ = atomicfile.RenameNew(path+certs.AsideSuffix, path) }, nil
}

// doing reports that a part is about to start or stop.
func (s *controlPlane) doing(verb, part string) {
	s.Log.Debugf("%s the %s", verb, part)
	if verb == lifecycle.Stopping && s.stopping.CompareAndSwap(false, true) {
		s.progress.end()
		s.systemd.Stopping()
		logbridge.Stopping(true)
	}
	s.systemd.Status(verb + " the " + part)
}

// announce announces a control plane whose parts are all ready.
// The order matters: the kubeconfig comes first, then systemd, then the ready line. If the start takes
// long, both were told before: see admit.
func (s *controlPlane) announce() error {
	s.blocked.announcing.Lock()
	defer s.blocked.announcing.Unlock()
	if err := s.certificates.Publish(); err != nil {
		return err
	}
	info := s.info()
	s.readyAt = time.Now()
	s.up.Store(true)
	s.blocked.clear()
	if s.collector != nil {
		s.collector.Settle(s.SettleAfter)
	}
	s.systemd.Ready(fmt.Sprintf("ready at %s, started in %v", info.URL, info.Took.Round(time.Millisecond)))
	if s.Ready != nil {
		s.Ready(info)
	}
	s.recordServed()
	return nil
}

// slowest is the number of parts that the ready line names.
const slowest = 3

func (s *controlPlane) info() Info {
	info := Info{
		URL: s.claim.url(), EtcdURL: s.etcdURL(), Kubeconfig: s.certificates.KubeconfigPath(),
		Took: time.Since(s.began), Slowest: s.trace.Slowest(slowest),
	}
	info.InsecureURL, info.PageURL = s.insecureURL(), s.pageURL()
	return info
}

// insecureURL is the URL of the insecure listener; empty if there is none.
func (s *controlPlane) insecureURL() string {
	if s.claim.insecure == nil {
		return ""
	}
	return "http://" + ports.Local(s.claim.insecure)
}

func (s *controlPlane) pageURL() string { return cmp.Or(s.insecureURL(), s.claim.url()) + page.Path }

// healthy returns an error if systemd's watchdog should restart the server.
func (s *controlPlane) healthy(ctx context.Context) error {
	if !s.up.Load() {
		return nil // startup has its own time limit
	}
	var exclude []string
	if !s.location.BuiltIn() { // a restart brings back no datastore of others
		exclude = []string{"etcd"}
	}
	return s.api.Server().Healthy(ctx, exclude...)
}

func (s *controlPlane) adminClient() *rest.Config { return s.clients().Config("karve", certs.Admin) }
