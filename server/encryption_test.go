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
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/server"
)

func TestEncryptionAtRest(t *testing.T) {
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("k"), 32))
	providers := writeFile(t, "encryption.yaml", `
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - secretbox: {keys: [{name: one, secret: `+key+`}]}
  - identity: {}
`)
	c := start(t, func(config *server.Config) {
		config.APIServerArgs = []string{"encryption-provider-config=" + providers}
	})
	ctx := t.Context()
	create(t, c.CoreV1().Secrets("default"), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "hidden"}, StringData: map[string]string{"where": "the-treasure-is-buried"},
	})
	create(t, c.CoreV1().ConfigMaps("default"), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "plain"}, Data: map[string]string{"where": "the-harbour-is-open"},
	})
	secret, err := c.CoreV1().Secrets("default").Get(ctx, "hidden", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(secret.Data["where"]); got != "the-treasure-is-buried" {
		t.Errorf("read back: got %q", got)
	}
	if err := c.stop(); err != nil {
		t.Fatal(err)
	}

	var state []byte
	files, _ := filepath.Glob(filepath.Join(c.dir, datastore.EngineFile+"*"))
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		state = append(state, content...)
	}
	if !bytes.Contains(state, []byte("the-harbour-is-open")) {
		t.Errorf("the ConfigMap is not in %v: looking for the Secret there proves nothing", files)
	}
	if bytes.Contains(state, []byte("the-treasure-is-buried")) {
		t.Errorf("the Secret is readable in %v", files)
	}
	if !bytes.Contains(state, []byte("k8s:enc:secretbox:v1:one:")) {
		t.Errorf("nothing in %v is encrypted with the key", files)
	}
}

// A server uses the configuration that it has fetched from its cluster in every start: also when it
// is started with its built-in datastore, and not as one of a cluster.
func TestFetchedEncryptionAlwaysCounts(t *testing.T) {
	for name, listen := range map[string]string{"alone": "", "one of a cluster, without a token": "http://127.0.0.1:0"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := certs.EncryptionFile(filepath.Join(dir, "certs"))
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
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
			c, err := launch(dir, func(config *server.Config) { config.EtcdListen = listen })
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.cancel(); <-c.done })
			create(t, c.CoreV1().Secrets("default"), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "hidden"}})
			etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + filepath.Join(c.dir, "kine.sock")}, DialTimeout: patience, Logger: zap.NewNop()})
			if err != nil {
				t.Fatal(err)
			}
			defer etcd.Close()
			stored, err := etcd.Get(t.Context(), "/registry/secrets/default/hidden")
			if err != nil || len(stored.Kvs) != 1 || !bytes.HasPrefix(stored.Kvs[0].Value, []byte("k8s:enc:secretbox:v1:one:")) {
				t.Errorf("the Secret is not encrypted in the datastore: %v, %v", stored, err)
			}
		})
	}
}
