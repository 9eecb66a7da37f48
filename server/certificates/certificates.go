// Package certificates issues the control plane's certificates, and renews them while it runs.
package certificates

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/karve-k8s/karve/certs"
)

var (
	expiration = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Name: "karve_certificate_expiration_timestamp_seconds", StabilityLevel: metrics.ALPHA,
		Help: "When a certificate of this server, or an authority, expires.",
	}, []string{"name"})
	registerMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(expiration) })
)

// Config is the configuration of the part.
type Config struct {
	DataDir string // the certificates are in its directory certs
	// SANs are names and addresses that the user adds to the serving certificate.
	SANs []string
	// Addresses are addresses of this machine that the serving certificate contains from the
	// first start on. Karve adds others when a client uses them: see [Certificates.Covering].
	Addresses     []net.IP
	ServiceIPs    []net.IP // of the kubernetes Service
	ClusterDomain string
	// Etcd says whether to issue the certificates of the etcd API, too.
	Etcd bool
	// DatastoreClient is the file of the certificate that the datastore wants, if any. Others renew it; the metric
	// says when it expires.
	DatastoreClient string

	// Server is the URL of this server, in the admin's kubeconfig. Advertised is the one at which users
	// reach the cluster; empty if it has none.
	Server, Advertised string
	// KubeconfigCopy is the path of a copy of that file, with KubeconfigCopyMode; empty means
	// no copy.
	KubeconfigCopy     string
	KubeconfigCopyMode os.FileMode

	Log *logrus.Logger
}

// Certificates is the part that issues and renews certificates.
type Certificates struct {
	config    Config
	store     atomic.Pointer[certs.Store]
	addresses *addresses
	asked     chan func()

	kubeconfigs sync.Mutex // held while they are written
	published   bool       // they have been written once
}

// New returns the part. It issues nothing before Run.
func New(c Config) *Certificates {
	return &Certificates{config: c, addresses: newAddresses(c.Addresses, c.Log), asked: make(chan func())}
}

// Store returns the store of the certificates. It is nil until they are issued, which they are when Run
// calls ready.
func (c *Certificates) Store() *certs.Store { return c.store.Load() }

// CertsConfig returns the configuration with which the certificates are issued.
func (c *Certificates) CertsConfig() certs.Config {
	sans := slices.Clone(c.config.SANs)
	for _, ip := range c.config.Addresses {
		sans = append(sans, ip.String())
	}
	return certs.Config{
		Dir: Dir(c.config.DataDir), ServiceIPs: c.config.ServiceIPs, ExtraSANs: sans,
		ClusterDomain: c.config.ClusterDomain, Etcd: c.config.Etcd, InterfaceAddrs: c.addresses.used,
	}
}

// Dir returns the directory of the certificates in a data directory.
func Dir(dataDir string) string { return filepath.Join(dataDir, "certs") }

// Run issues what is missing, calls ready, and renews what is due until ctx ends.
func (c *Certificates) Run(ctx context.Context, ready func()) error {
	if err := c.issue(); err != nil {
		return err
	}
	ready()
	c.keepFresh(ctx)
	return nil
}

func (c *Certificates) issue() error {
	store, notes, err := certs.Ensure(c.CertsConfig())
	if err != nil {
		return err
	}
	logNotes(c.config.Log, notes, map[certs.Note]bool{})
	c.use(store)
	return nil
}

// use starts to use issued certificates.
func (c *Certificates) use(store *certs.Store) {
	c.store.Store(store)
	c.addresses.covers(store.CertFile(certs.Serving))
}

// keepFresh renews what is due until ctx ends.
func (c *Certificates) keepFresh(ctx context.Context) {
	registerMetrics()
	c.measure()
	renew := func() ([]certs.Name, []certs.Note, error) {
		renewed, notes, err := c.Store().Renew()
		c.addresses.covers(c.Store().CertFile(certs.Serving))
		c.measure()
		return renewed, notes, err
	}
	renewer{renew: renew, nextDue: c.Store().NextDue, publish: c.republish, log: c.config.Log}.run(ctx, c.asked)
}

// measure sets the metric to the ends of the certificates in the directory. One that cannot be read has none.
func (c *Certificates) measure() {
	infos, _ := certs.List(filepath.Dir(c.Store().CertFile(certs.Serving)), time.Now()) // Renew reports the same error
	expiration.Reset()
	if end, err := certs.End(c.config.DatastoreClient); err == nil {
		expiration.WithLabelValues("datastore-client").Set(float64(end.Unix()))
	}
	for _, i := range infos {
		if !i.NotAfter.IsZero() {
			expiration.WithLabelValues(string(i.Name)).Set(float64(i.NotAfter.Unix()))
		}
	}
}

// KubeconfigPath returns the path of the admin's kubeconfig.
func (c *Certificates) KubeconfigPath() string { return KubeconfigPath(c.config.DataDir) }

// KubeconfigPath returns the path of the admin's kubeconfig in a data directory.
func KubeconfigPath(dataDir string) string { return filepath.Join(dataDir, "admin.kubeconfig") }

// Publish writes the admin's kubeconfig for the first time. Its presence means that the cluster
// answers. From then on, renewals write it again.
func (c *Certificates) Publish() error {
	c.kubeconfigs.Lock()
	defer c.kubeconfigs.Unlock()
	c.published = true
	return c.writeKubeconfigs()
}

// republish writes the kubeconfigs again after a renewal. During startup it does nothing, because
// Publish comes later.
func (c *Certificates) republish() error {
	c.kubeconfigs.Lock()
	defer c.kubeconfigs.Unlock()
	if !c.published {
		return nil
	}
	return c.writeKubeconfigs()
}

// writeKubeconfigs writes the admin's kubeconfig and the copy that the user asked for.
func (c *Certificates) writeKubeconfigs() error {
	files := certs.KubeconfigFiles{Path: c.KubeconfigPath(), Copy: c.config.KubeconfigCopy, CopyMode: c.config.KubeconfigCopyMode}
	k := c.Store().Kubeconfig(certs.Admin, c.config.Server)
	k.Advertised = c.config.Advertised
	return files.Write(k)
}

// Check returns an error if a certificate that the server presents has expired: one of Karve's, or the user's own serving
// certificate, if there is one. What cannot be read is not its concern, nor are authorities, of which there may be old ones.
func (c *Certificates) Check(now time.Time, users string) error {
	var files []string
	for _, name := range certs.Names() {
		files = append(files, c.Store().CertFile(name))
	}
	if users != "" {
		files = append(files, users)
	}
	var errs []error
	for _, file := range files {
		chain, err := certutil.CertsFromFile(file)
		if err != nil || chain[0].IsCA && file != users {
			continue
		}
		if now.After(chain[0].NotAfter) {
			errs = append(errs, fmt.Errorf("%s has expired at %s", file, chain[0].NotAfter.Format(time.RFC3339)))
		}
	}
	return errors.Join(errs...)
}
