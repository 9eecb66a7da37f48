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
	"github.com/karve-k8s/karve/server/certificates"
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

// announces sets what the start announces.
func (s *controlPlane) announces() {
	s.start.Limit, s.start.RequireReady, s.start.Log, s.start.Progress = s.StartTimeout, s.RequireReady, s.Log, s.Progress
	s.start.URL, s.start.Kubeconfig, s.start.Publish = s.claim.url(), s.certificates.KubeconfigPath(), s.certificates.Publish
	s.start.Healthy = s.healthy
	s.start.Ready = func(took time.Duration) {
		if s.collector != nil {
			s.collector.Settle(s.SettleAfter)
		}
		if s.plan.Ready != nil {
			s.plan.Ready(s.info(took))
		}
		s.membership.Ready()
	}
}

// slowest is the number of parts that the ready line names.
const slowest = 3

func (s *controlPlane) info(took time.Duration) Info {
	return Info{
		URL: s.claim.url(), EtcdURL: s.etcdURL(), Kubeconfig: s.certificates.KubeconfigPath(),
		InsecureURL: s.insecureURL(), PageURL: s.pageURL(), Took: took, Slowest: s.start.Slowest(slowest),
	}
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
	var exclude []string
	if !s.location.BuiltIn() { // a restart brings back no datastore of others
		exclude = []string{"etcd"}
	}
	return s.api.Server().Healthy(ctx, exclude...)
}

func (s *controlPlane) adminClient() *rest.Config { return s.clients().Config("karve", certs.Admin) }
