package membership

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/server/marker"
)

// Part makes a server one of the cluster in the datastore. It comes between the datastore and the certificates, because
// no authority may be made for a cluster that exists.
type Part struct {
	Cluster Cluster // without KV
	Server  Server  // without Encryption
	// EncryptionFile is the user's file of --encryption-provider-config; empty without the option.
	EncryptionFile string
	// Connect calls do with a client of the datastore. Run calls it.
	Connect func(ctx context.Context, do func(context.Context, clientv3.KV) error) error
	// Client returns the client configuration of an administrator, when the API server serves.
	Client func() *rest.Config
	Log    *logrus.Logger

	steps string // see Outcome
}

// Run calls ready when the server has joined.
func (p *Part) Run(ctx context.Context, ready func()) error {
	if err := p.Connect(ctx, p.join); err != nil {
		return err
	}
	ready()
	<-ctx.Done()
	return nil
}

func (p *Part) join(ctx context.Context, kv clientv3.KV) (err error) {
	s, c := p.Server, p.Cluster
	c.KV = kv
	if p.EncryptionFile != "" {
		if s.Encryption, err = os.ReadFile(p.EncryptionFile); err != nil {
			return fmt.Errorf("%s: %w", encryptionOption, err)
		}
	}
	done, err := c.Join(ctx, s)
	if err != nil {
		return err
	}
	p.steps = done.Steps
	p.tell(done)
	used := certs.EncryptionFile(s.Certs.Dir)
	if err := c.CheckReadable(ctx, cmp.Or(p.EncryptionFile, used), false); err != nil { // the API server would start, and never be ready
		if p.EncryptionFile == "" {
			return fmt.Errorf("%w; if the key is lost, start with %s FILE, which has only the provider identity, and delete the unreadable Secrets by etcdctl", err, encryptionOption)
		}
		p.Log.Warnf("the server does not become ready: %v; if the key is lost, delete the unreadable Secrets by etcdctl", err)
	}
	if done.Encrypted {
		p.Log.Infof("this cluster stores Secrets encrypted. The key is in %s: a backup of karve has it, and a copy of the database alone cannot be read without it", used)
	}
	if done.Recorded && !c.PrivateStorage {
		return p.logFingerprints()
	}
	return nil
}

// tell logs what Join has done.
func (p *Part) tell(done Outcome) {
	switch {
	case done.Replaced:
		p.Log.Warnf("--%s: the cluster has new authorities, and refuses kubeconfigs, tokens and node certificates that the old ones have signed", NewAuthoritiesOption)
	case p.Server.NewAuthorities != "":
		p.Log.Infof("--%s changes nothing, because the keys of this server are the cluster's: it can be removed", NewAuthoritiesOption)
	}
	switch {
	case done.Stored:
		p.Log.Info("stored the keys of the cluster in the datastore, encrypted with its token: other servers can join")
	case done.Fetched:
		p.Log.Info("joined the cluster in the datastore, with its keys")
	case done.Taken:
		p.Log.Info("took the keys of the cluster that have been replaced since the last start")
	}
}

// logFingerprints says which keys the datastore now names as the cluster's.
func (p *Part) logFingerprints() error {
	shared, err := certs.ReadShared(p.Server.Certs.Dir)
	if err != nil {
		return err
	}
	keys, err := shared.Fingerprints()
	if err != nil {
		return err
	}
	for _, name := range certs.SharedNames() {
		p.Log.Infof("the cluster's key %s has the SHA-256 %s", name, keys[name])
	}
	return nil
}

// Ready records that the keys of this server have served a cluster that outlives the process. Call it when the cluster is ready.
func (p *Part) Ready() {
	if !p.Server.Lasting {
		return
	}
	if err := Served(p.Server.Certs.Dir); err != nil && !marker.MayStayUnmarked(err) {
		p.Log.Warnf("it could not be recorded that the cluster has been ready, so a start on an empty datastore would make a new one: %v", err)
	}
}
