package server

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/certificates"
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

// joins returns the part that makes this server one of the cluster in the datastore.
func (s *controlPlane) joins() *membership.Part {
	p := &membership.Part{
		Cluster: membership.Cluster{PrivateStorage: s.privateStorage(), Prefix: apiserver.StoragePrefix(s.APIServerArgs), Ways: apiserver.Ways},
		Server: membership.Server{
			Certs: s.certificates.CertsConfig(), Token: s.clusterToken, NewAuthorities: s.NewAuthorities,
			OtherFrontProxy: apiserver.LastArg(s.APIServerArgs, apiserver.FrontProxyOption) != "",
			Lasting:         !s.location.InMemory(),
		},
		EncryptionFile: s.usersEncryption(), Client: s.adminClient, Log: s.Log,
		Connect: func(ctx context.Context, do func(context.Context, clientv3.KV) error) error {
			return s.storage.Connection().Ask(ctx, do)
		},
	}
	if !s.NoSecretsEncryption && p.Server.Lasting {
		p.Server.NewEncryption = apiserver.NewEncryption
	}
	return p
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
