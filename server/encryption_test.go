package server_test

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/server"
)

// A server uses the configuration that it has fetched from its cluster in every start: also when it
// is started with its built-in datastore, and not as one of a cluster.
func TestFetchedEncryptionAlwaysCounts(t *testing.T) {
	for name, listen := range map[string]string{"alone": "", "one of a cluster, without a token": "http://127.0.0.1:0"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := certs.EncryptionFile(filepath.Join(dir, "certs"))
			fatal(t, os.MkdirAll(filepath.Dir(file), 0o700))
			if err := os.WriteFile(file, []byte(`
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - secretbox: {keys: [{name: one, secret: `+base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("k"), 32))+`}]}
`), 0o600); err != nil {
				t.Fatal(err)
			}
			c := up(t, dir, func(config *server.Config) { config.EtcdListen = listen })
			create(t, c.CoreV1().Secrets("default"), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "hidden"}})
			etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + filepath.Join(c.dir, "kine.sock")}, DialTimeout: patience, Logger: zap.NewNop()})
			fatal(t, err)
			defer etcd.Close()
			stored, err := etcd.Get(t.Context(), "/registry/secrets/default/hidden")
			if err != nil || len(stored.Kvs) != 1 || !bytes.HasPrefix(stored.Kvs[0].Value, []byte("k8s:enc:secretbox:v1:one:")) {
				t.Errorf("the Secret is not encrypted in the datastore: %v, %v", stored, err)
			}
		})
	}
}
