package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/server/certificates"
	"github.com/karve-k8s/karve/server/lifecycle"
	"github.com/karve-k8s/karve/server/ports"
)

// removeKubeconfig removes that of the last start: its presence tells that the cluster answers.
func removeKubeconfig(dataDir string) error {
	if err := os.Remove(certificates.KubeconfigPath(dataDir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the last start's kubeconfig: %w", err)
	}
	return nil
}

// doing is called before each part is started or stopped.
func (s *controlPlane) doing(verb, part string) {
	s.Log.Debugf("%s the %s", verb, part)
	if verb == lifecycle.Stopping && s.stopping.CompareAndSwap(false, true) {
		s.systemd.Stopping()
		logbridge.Stopping(true)
	}
	s.systemd.Status(verb + " the " + part)
}

// announce is called when the last part is ready; running ends when the stop begins. The
// order counts: a kubeconfig, then systemd, then the user's line.
func (s *controlPlane) announce(running context.Context) error {
	if err := s.certificates.Publish(); err != nil {
		return err
	}
	info := s.info()
	s.writeTrace()
	s.up.Store(true)
	s.settling.Begin(running)
	s.systemd.Ready(fmt.Sprintf("ready at %s, started in %v", info.URL, info.Took.Round(time.Millisecond)))
	if s.Ready != nil {
		s.Ready(info)
	}
	return nil
}

// slowest is how many parts the ready line names.
const slowest = 3

func (s *controlPlane) info() Info {
	info := Info{
		URL: s.claim.url(), EtcdURL: s.etcdURL(), Kubeconfig: s.certificates.KubeconfigPath(),
		Took: time.Since(s.began), Slowest: s.trace.Slowest(slowest),
	}
	if s.claim.insecure != nil {
		info.InsecureURL = "http://" + ports.Local(s.claim.insecure)
	}
	return info
}

// settle does what had to wait until everything is ready.
func (s *controlPlane) settle() {
	s.api.Server().Settle()
	if s.collector != nil && !s.stopping.Load() {
		s.collector.Settle()
	}
}

// healthy answers systemd's watchdog.
func (s *controlPlane) healthy(ctx context.Context) error {
	if !s.up.Load() {
		return nil // a start has its own time limit
	}
	return s.api.Server().Healthy(ctx)
}

func (s *controlPlane) adminClient() *rest.Config { return s.clients().Config(certs.Admin) }

// stepsOf begins steps of a part in the trace of the start.
func (s *controlPlane) stepsOf(part string) func(step string) (done func()) {
	return func(step string) func() { return s.trace.Step(part, step) }
}

// writeFailedTrace writes the trace of a start that did not complete.
func (s *controlPlane) writeFailedTrace() {
	if !s.up.Load() {
		s.writeTrace()
	}
}

// writeTrace writes the trace of the start, if the user wants one.
func (s *controlPlane) writeTrace() {
	if s.StartupTrace == "" {
		return
	}
	if err := s.trace.Write(s.StartupTrace); err != nil {
		s.Log.Errorf("--startup-trace: %v", err)
	}
}
