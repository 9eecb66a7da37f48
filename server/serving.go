package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/informers"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/apiserver/egress"
	"github.com/karve-k8s/karve/server/certificates"
	"github.com/karve-k8s/karve/server/insecure"
	"github.com/karve-k8s/karve/server/lifecycle"
	"github.com/karve-k8s/karve/server/page"
	"github.com/karve-k8s/karve/server/ports"
	"github.com/karve-k8s/karve/simulate/metricsapi"
)

// runAPIServer runs the API server, which has the listeners when it serves.
func (s *controlPlane) runAPIServer(ctx context.Context, serves, ready func()) error {
	s.api.Built = func() {
		s.claim.served = true
		serves()
	}
	return s.api.Run(ctx, ready)
}

// configureAPIServer returns the configuration of the API server. The parts that it needs are ready.
func (s *controlPlane) configureAPIServer() (apiserver.Config, error) {
	c := s.apiserverConfig()
	c.TerminationTimeout, c.Log, c.Loopback, c.Routers = s.StopTimeout, s.Log, s.loopback, s.routers
	o := &overview{plan: s.plan, start: s.start, claim: s.claim, hour: s.hour, manifests: s.manifests, storage: s.storage, api: s.api, client: s.adminClient}
	c.Page, c.PagePath, c.Seen = page.Handler(o.look), page.Path, s.hour.Request
	c.SingleServer = s.privateStorage()
	stored, store := s.storage.Connection(), s.certificates.Store()
	c.Etcd = apiserver.Etcd{Endpoints: stored.Endpoints, CAFile: stored.CAFile, CertFile: stored.CertFile, KeyFile: stored.KeyFile}
	c.Store = stored.Store
	c.Certificates = apiserver.Certificates{
		UserCert: s.TLSCertFile, UserKey: s.TLSKeyFile,
		ServingCert: store.CertFile(certs.Serving), ServingKey: store.KeyFile(certs.Serving),
		ClientCA: store.CertFile(certs.ClientCA), FrontProxyCA: store.CertFile(certs.FrontProxyCA),
		FrontProxyClientCert: store.CertFile(certs.FrontProxyClient), FrontProxyClientKey: store.KeyFile(certs.FrontProxyClient),
		KubeletClientCert: store.CertFile(certs.KubeletClient), KubeletClientKey: store.KeyFile(certs.KubeletClient),
		ServiceAccountKey: store.KeyFile(certs.ServiceAccount),
	}
	s.setReadyChecks(&c)
	s.setDial(&c)
	for _, set := range []func(*apiserver.Config) error{s.setEncryption, s.setAudit, s.setListeners, s.setFirstObjects, s.setIdentity} {
		if err := set(&c); err != nil {
			return c, err
		}
	}
	return c, nil
}

// setEncryption names the encryption configuration that this server has fetched from its cluster, for a server without a
// file of its own. It counts in every start: without it, the API server would store Secrets in plain text.
func (s *controlPlane) setEncryption(c *apiserver.Config) error {
	if s.usersEncryption() != "" {
		return nil
	}
	file := certs.EncryptionFile(certificates.Dir(s.DataDir))
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	s.Log.Debugf("encrypting stored objects as %s says", file)
	c.Args = append(slices.Clone(c.Args), apiserver.EncryptionOption+"="+file)
	if apiserver.LastArg(c.Args, apiserver.ReloadOption) == "" { // karve secrets changes the file
		c.Args = append(c.Args, apiserver.ReloadOption+"=true")
	}
	return nil
}

// setAudit writes the policy of --audit-preset.
func (s *controlPlane) setAudit(c *apiserver.Config) error {
	if s.auditPolicy == "" {
		return nil
	}
	file := filepath.Join(s.DataDir, "audit", "policy.yaml")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), atomicfile.Write(file, []byte(s.auditPolicy), 0o600)); err != nil {
		return fmt.Errorf("--%s: %w", apiserver.AuditOption, err)
	}
	if path := apiserver.LastArg(s.APIServerArgs, "audit-log-path"); path != "" && path != "-" && apiserver.LastArg(s.APIServerArgs, "audit-log-maxbackup") == "" {
		s.Log.Warnf("the audit log %s has no limit: --audit-log-maxbackup sets one", path)
	}
	c.Args = append(slices.Clone(c.Args), "audit-policy-file="+file)
	return nil
}

// drainTimeout limits requests in flight at the insecure listener after the secure one has drained.
// By then none should be left.
const drainTimeout = 5 * time.Second

// setListeners hands over the listeners.
func (s *controlPlane) setListeners(c *apiserver.Config) (err error) {
	c.SecureListener, c.InsecureListener = s.claim.secure, s.claim.insecure
	if s.TLSCertFile == "" { // otherwise clients at an address get the user's certificate
		c.SecureListener = s.certificates.Covering(s.claim.secure, ports.Local(s.claim.secure))
	}
	c.Insecure = insecure.Options{
		AnyUser: s.InsecureAnyUser, AllowRemote: s.InsecureAllowRemote,
		DisableHTTP2: s.DisableHTTP2, ShutdownTimeout: drainTimeout,
		Log: logrus.NewEntry(s.Log),
	}
	c.SocketGroups = s.socketGroups
	c.Socket, err = s.socketGroups.Listen(s.DataDir)
	return err
}

// setFirstObjects says which objects a new cluster has.
func (s *controlPlane) setFirstObjects(c *apiserver.Config) (err error) {
	assigned := false
	if u := s.plan.controllers; u != nil {
		assigned = u.AssignsPodRanges()
		if c.Bootstrap, err = u.Bootstrap(s.certificates.Store()); err != nil {
			return err
		}
	}
	c.Bootstrap.Log = s.Log
	c.Bootstrap.Report = lifecycle.NewRequests(s.start.SetBlocked(apiserverPart)).Report
	if !s.NoKubeadmObjects {
		c.Bootstrap.Kubeadm, err = s.joining.config(assigned)
	}
	return err
}

// setIdentity lets servers and commands know who has followed a replacement of keys: this server, by a Lease of its own, and nodes.
func (s *controlPlane) setIdentity(c *apiserver.Config) (err error) {
	if c.Identity, err = s.membership.Identity(); err != nil {
		return err
	}
	c.NodeIssuer, err = s.membership.NodeIssuer()
	return err
}

// setDial reaches simulated nodes in this process, and other nodes through SSH tunnels.
func (s *controlPlane) setDial(c *apiserver.Config) {
	if s.tunnels != nil {
		c.Dial = s.tunnels.tunnels.Load().Dial
	}
	if s.simulation == nil {
		return
	}
	c.Group = func(shared informers.SharedInformerFactory) *genericapiserver.APIGroupInfo {
		return metricsapi.Group(shared, s.podDefaults)
	}
	others := c.Dial
	c.Dial = func(next egress.DialFunc) egress.DialFunc { // passes on what is not a simulated node's
		if others != nil {
			next = others(next)
		}
		return s.simulation.kubelet.Dial(next)
	}
}

// setReadyChecks sets the checks of /readyz. A start does not wait for the last two: it works on a full disk. `karve status` shows
// their errors.
func (s *controlPlane) setReadyChecks(c *apiserver.Config) {
	add := func(name string, check func(*http.Request) error) {
		c.ReadyChecks = append(c.ReadyChecks, healthz.NamedCheck(name, check))
	}
	if s.controlling != nil {
		add("controllers", s.controlling.Check)
	}
	if s.scheduling != nil {
		add("scheduler", s.scheduling.Check)
	}
	if s.simulation != nil {
		add("simulated-nodes", func(*http.Request) error { return s.start.Reason(simulationPart) })
	}
	add("certificates", func(*http.Request) error { return s.certificates.Check(time.Now(), s.TLSCertFile) })
	if engine := s.storage.Connection().Engine; engine != nil {
		add("datastore-writes", func(*http.Request) error { return engine.Writable() })
	}
}
