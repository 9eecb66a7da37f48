// Package certificates issues the control plane's certificates, and renews them while it runs.
package certificates

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/karve-k8s/karve/certs"
)

// Config is what the part needs.
type Config struct {
	DataDir string // the certificates are in certs/ of it
	// SANs are the user's, of the serving certificate.
	SANs []string
	// Addresses of this machine are in the serving certificate from the first start.
	// Others are added when a client uses them: see [Certificates.Covering].
	Addresses     []net.IP
	ServiceIPs    []net.IP // of the kubernetes Service
	ClusterDomain string
	// Etcd issues the certificates of the etcd API, too.
	Etcd bool

	// Server is the URL in the admin's kubeconfig.
	Server string
	// KubeconfigCopy is a second file for it, with KubeconfigCopyMode; empty is none.
	KubeconfigCopy     string
	KubeconfigCopyMode os.FileMode

	Log *logrus.Logger
}

// Certificates is the part.
type Certificates struct {
	config    Config
	store     *certs.Store
	addresses *addresses
	asked     chan func()

	kubeconfigs sync.Mutex // held while they are written
	published   bool       // they have been
}

// New is the part before it runs.
func New(c Config) *Certificates {
	return &Certificates{config: c, addresses: newAddresses(c.Addresses), asked: make(chan func())}
}

// Store has the certificates. It is valid as soon as Run has called ready.
func (c *Certificates) Store() *certs.Store { return c.store }

// Run issues what is missing, calls ready, and renews what is due until ctx ends.
func (c *Certificates) Run(ctx context.Context, ready func()) error {
	if err := c.issue(); err != nil {
		return err
	}
	ready()
	c.keepFresh(ctx, watchClock(ctx, systemClock()))
	return nil
}

func (c *Certificates) issue() error {
	sans := slices.Clone(c.config.SANs)
	for _, ip := range c.config.Addresses {
		sans = append(sans, ip.String())
	}
	store, notes, err := certs.Ensure(certs.Config{
		Dir: filepath.Join(c.config.DataDir, "certs"), ServiceIPs: c.config.ServiceIPs, ExtraSANs: sans,
		ClusterDomain: c.config.ClusterDomain, Etcd: c.config.Etcd, InterfaceAddrs: c.addresses.used,
	})
	if err != nil {
		return err
	}
	logNotes(c.config.Log, notes, map[certs.Note]bool{})
	c.use(store)
	return nil
}

// use takes over issued certificates.
func (c *Certificates) use(store *certs.Store) {
	c.store = store
	c.addresses.covers(store.CertFile(certs.Serving))
}

// keepFresh renews what is due until ctx ends.
func (c *Certificates) keepFresh(ctx context.Context, set <-chan time.Duration) {
	renew := func() ([]certs.Name, []certs.Note, error) {
		renewed, notes, err := c.store.Renew()
		c.addresses.covers(c.store.CertFile(certs.Serving))
		return renewed, notes, err
	}
	renewer{renew: renew, nextDue: c.store.NextDue, publish: c.republish, log: c.config.Log}.run(ctx, c.asked, set)
}

// KubeconfigPath is that of the admin's kubeconfig.
func (c *Certificates) KubeconfigPath() string { return KubeconfigPath(c.config.DataDir) }

// KubeconfigPath is that of the admin's kubeconfig in a data directory.
func KubeconfigPath(dataDir string) string { return filepath.Join(dataDir, "admin.kubeconfig") }

// Publish writes the admin's kubeconfig for the first time: its presence tells that the
// cluster answers. From then on a renewal writes it again.
func (c *Certificates) Publish() error {
	c.kubeconfigs.Lock()
	defer c.kubeconfigs.Unlock()
	c.published = true
	return c.writeKubeconfigs()
}

// republish writes what has been published again, with renewed certificates. A start that
// is under way publishes it itself.
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
	return files.Write(c.store.Kubeconfig(certs.Admin, c.config.Server))
}
