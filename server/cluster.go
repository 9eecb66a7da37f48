package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/certificates"
	"github.com/karve-k8s/karve/server/marker"
	"github.com/karve-k8s/karve/server/membership"
)

// parseClusterToken reads --cluster-token-file.
func (d *draft) parseClusterToken() {
	file := d.ClusterTokenFile
	if file == "" {
		return
	}
	const option = "--" + membership.Option
	switch {
	case d.location.BuiltIn() && d.EtcdListen == "":
		d.addf("%s %s: the built-in datastore serves one server; share a database (--datastore-endpoint) or this datastore (--etcd-listen)", option, file)
		return
	case d.location.InMemory():
		d.addf("%s %s: a datastore in memory does not keep the cluster's keys: leave the option out", option, file)
		return
	}
	d.readClusterToken()
}

// readClusterToken reads the file of --cluster-token-file, if there is one.
func (d *draft) readClusterToken() {
	if d.ClusterTokenFile == "" {
		return
	}
	var err error
	if d.clusterToken, err = membership.ReadToken(d.ClusterTokenFile); err != nil {
		d.addf("--%s: %w", membership.Option, err)
	}
}

// parseNewAuthorities checks --new-authorities.
func (d *draft) parseNewAuthorities() {
	if err := membership.CheckID(d.NewAuthorities); err != nil {
		d.addf("--%s %s: %w", membership.NewAuthoritiesOption, d.NewAuthorities, err)
	}
}

// issuesFirst reports whether certificates can be issued while the datastore opens, because no authority is made
// for a cluster that exists: the data directory has all keys, or there are no data, and no other server can bring
// some. It saves time in nearly every start.
func (p *plan) issuesFirst() bool {
	if !p.privateStorage() {
		return false
	}
	local, err := certs.ReadShared(certificates.Dir(p.DataDir))
	// An error is reported when they are issued.
	return err != nil || len(local) == len(certs.SharedNames()) || !p.location.HasData(p.DataDir)
}

// joinCluster makes this server one of the cluster in the datastore, before it issues certificates, or just after
// that: see issuesFirst.
func (s *controlPlane) joinCluster(ctx context.Context, kv clientv3.KV) error {
	if s.keysFirst {
		select {
		case <-s.certificates.Issued():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	server := membership.Server{
		Certs: s.certificates.CertsConfig(), Token: s.clusterToken, NewAuthorities: s.NewAuthorities,
		OtherFrontProxy: apiserver.LastArg(s.APIServerArgs, apiserver.FrontProxyOption) != "",
		Lasting:         !s.location.InMemory(),
	}
	file := apiserver.LastArg(s.APIServerArgs, apiserver.EncryptionOption)
	if file != "" {
		var err error
		if server.Encryption, err = os.ReadFile(file); err != nil {
			return fmt.Errorf("--%s: %w", apiserver.EncryptionOption, err)
		}
	}
	encrypted := false
	if !s.NoSecretsEncryption && !s.location.InMemory() {
		server.NewEncryption = func() ([]byte, error) {
			encrypted = true
			return apiserver.NewEncryption()
		}
	}
	cluster := membership.Cluster{KV: kv, PrivateStorage: s.privateStorage(), Prefix: apiserver.StoragePrefix(s.APIServerArgs), Ways: apiserver.Ways}
	done, err := cluster.Join(ctx, server)
	if err != nil {
		return err
	}
	s.steps = done.Steps
	switch {
	case done.Replaced:
		s.Log.Warnf("--%s: the cluster has new authorities, and refuses kubeconfigs, tokens and node certificates that the old ones have signed", membership.NewAuthoritiesOption)
	case s.NewAuthorities != "":
		s.Log.Infof("--%s changes nothing, because the keys of this server are the cluster's: it can be removed", membership.NewAuthoritiesOption)
	}
	switch {
	case done.Stored:
		s.Log.Info("stored the keys of the cluster in the datastore, encrypted with its token: other servers can join")
	case done.Fetched:
		s.Log.Info("joined the cluster in the datastore, with its keys")
	case done.Taken:
		s.Log.Info("took the keys of the cluster that have been replaced since the last start")
	}
	if err := cluster.CheckReadable(ctx, s.encryptionFile(), false); err != nil { // the API server would start, and never be ready
		if file == "" {
			return fmt.Errorf("%w; if the key is lost, start with --%s FILE, which has only the provider identity, and delete the unreadable Secrets by etcdctl", err, apiserver.EncryptionOption)
		}
		s.Log.Warnf("the server does not become ready: %v; if the key is lost, delete the unreadable Secrets by etcdctl", err)
	}
	if done.Recorded && encrypted {
		s.Log.Infof("this cluster stores Secrets encrypted. The key is in %s: a backup of karve has it, and a copy of the database alone cannot be read without it", certs.EncryptionFile(server.Certs.Dir))
	}
	if done.Recorded && !s.privateStorage() {
		return s.logFingerprints(server.Certs.Dir)
	}
	return nil
}

// recordServed records that the keys of this server have served a cluster that outlives the process.
func (s *controlPlane) recordServed() {
	if s.location.InMemory() {
		return
	}
	if err := membership.Served(certificates.Dir(s.DataDir)); err != nil && !marker.MayStayUnmarked(err) {
		s.Log.Warnf("it could not be recorded that the cluster has been ready, so a start on an empty datastore would make a new one: %v", err)
	}
}

// encryptionFile is the path of the encryption configuration, which need not exist.
func (p *plan) encryptionFile() string {
	return cmp.Or(p.usersEncryption(), certs.EncryptionFile(certificates.Dir(p.DataDir)))
}

// checkReset returns an error if the API server could not read a Secret of what the cluster is to be reset to.
func (p *plan) checkReset(to *datastore.Dump) error {
	cluster := membership.Cluster{Prefix: apiserver.StoragePrefix(p.APIServerArgs), Ways: apiserver.Ways}
	return cluster.CheckReadableIn(to.Each, p.encryptionFile())
}

// logFingerprints says which keys the datastore now names as the cluster's.
func (s *controlPlane) logFingerprints(dir string) error {
	shared, err := certs.ReadShared(dir)
	if err != nil {
		return err
	}
	keys, err := shared.Fingerprints()
	if err != nil {
		return err
	}
	for _, name := range certs.SharedNames() {
		s.Log.Infof("the cluster's key %s has the SHA-256 %s", name, keys[name])
	}
	return nil
}

// clusterEncryption returns the encryption configuration that this server has fetched from its
// cluster, for a server without a file of its own. It counts in every start: without it, the API
// server would store Secrets in plain text.
func (s *controlPlane) clusterEncryption() (file string, err error) {
	if apiserver.LastArg(s.APIServerArgs, apiserver.EncryptionOption) != "" {
		return "", nil
	}
	file = certs.EncryptionFile(certificates.Dir(s.DataDir))
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	s.Log.Debugf("encrypting stored objects as %s says", file)
	return file, nil
}

// usersFiles returns the paths of files outside the data directory that belong to the cluster, for backups.
func (p *plan) usersFiles() []string {
	return slices.DeleteFunc([]string{absolute(p.ConfigFile), p.usersEncryption()}, func(path string) bool { return path == "" })
}

// usersEncryption returns the path of the user's encryption configuration; empty if there is none.
func (p *plan) usersEncryption() string {
	return absolute(apiserver.LastArg(p.APIServerArgs, apiserver.EncryptionOption))
}

// absolute returns an absolute path, or "" for "".
func absolute(path string) string {
	if abs, err := filepath.Abs(path); path != "" && err == nil {
		return abs
	}
	return path
}
