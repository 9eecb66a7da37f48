package server

import (
	"context"
	"fmt"
	"os"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/karve-k8s/karve/server/apiserver"
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
		d.addf("%s %s: no other server can use the built-in datastore of this one: name a database that servers share by --datastore-endpoint, or offer this datastore by --etcd-listen", option, file)
		return
	case d.location.External != nil && !d.location.External.Shareable():
		d.addf("%s %s: servers cannot share %s: use PostgreSQL, MySQL or an etcd", option, file, d.location.External)
		return
	case d.location.InMemory():
		d.addf("%s %s: a datastore in memory does not keep the cluster's keys: leave the option out", option, file)
		return
	}
	var err error
	if d.clusterToken, err = membership.ReadToken(file); err != nil {
		d.addf("%s: %w", option, err)
	}
}

// joinCluster makes this server one of the cluster in the datastore, before it issues certificates.
func (s *controlPlane) joinCluster(ctx context.Context, kv clientv3.KV) error {
	defer s.stepsOf(datastorePart)("join the cluster")()
	server := membership.Server{Certs: s.certificates.CertsConfig(), Token: s.clusterToken, TokenFile: s.ClusterTokenFile}
	file := apiserver.LastArg(s.APIServerArgs, apiserver.EncryptionOption)
	if file != "" {
		var err error
		if server.Encryption, err = os.ReadFile(file); err != nil {
			return fmt.Errorf("--%s: %w", apiserver.EncryptionOption, err)
		}
	}
	done, err := membership.Cluster{KV: kv, Prefix: apiserver.StoragePrefix(s.APIServerArgs)}.Join(ctx, server)
	if err != nil {
		return err
	}
	switch {
	case done.Stored:
		s.Log.Info("stored the keys of the cluster in the datastore, encrypted with its token: other servers can join")
	case done.Fetched:
		s.Log.Info("joined the cluster in the datastore, with its keys")
	}
	if s.encryptionFile = done.EncryptionFile; s.encryptionFile != "" {
		s.Log.Infof("encrypting stored objects as the cluster does: its configuration is in %s", s.encryptionFile)
	}
	return nil
}
