package server_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/membership"
)

// A whole control plane works on a user's database. It survives a restart of itself and of the
// database, and a second control plane can share the database.
func TestControlPlaneOnADatabase(t *testing.T) {
	for _, kind := range []string{"postgres", "mysql"} {
		t.Run(kind, func(t *testing.T) {
			name := "KARVE_TEST_" + strings.ToUpper(kind)
			endpoint, control := os.Getenv(name), os.Getenv(name+"_CONTROL")
			if endpoint == "" {
				t.Skipf("%s is not set: scripts/external-databases starts a database and sets it", name)
			}
			database := func(verb string) {
				t.Helper()
				if out, err := exec.Command(control, verb).CombinedOutput(); err != nil {
					t.Fatalf("%s %s: %v\n%s", control, verb, err, out)
				}
			}
			own := fmt.Sprintf("plane%d", time.Now().UnixNano())
			token := writeFile(t, "token", membership.NewToken())
			configure := func(c *server.Config) {
				c.DatastoreEndpoint, c.AdvertiseAddress, c.ClusterTokenFile = endpoint+own, "192.0.2.1", token
			}
			began := time.Now()
			done := func(what string) {
				t.Logf("%s: %v", what, time.Since(began).Round(10*time.Millisecond))
				began = time.Now()
			}
			dir := t.TempDir()
			c := up(t, dir, configure)
			done("start on an empty database")
			if _, err := makeConfigMap(t, c, "one"); err != nil {
				t.Fatal(err)
			}
			eventually.Nil(t, "a Deployment has Pods", func() error { return deploy(t, c, "web") })
			done("use")
			metrics, err := c.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
			if has := strings.Contains(string(metrics), "kine_sql_total{"); err != nil || !has {
				t.Errorf("kine's figures in /metrics: %v, %v", has, err)
			}

			second := start(t, func(c *server.Config) {
				configure(c)
				c.AdvertiseAddress = "192.0.2.2"
			})
			second.says(t, "leads and runs the controllers: this server waits until it stops", 1)
			second.says(t, "leads and runs the scheduler: this server waits until it stops", 1)
			done("start of a second")
			shareAll(t, c, second)
			second.cancel()
			if <-second.done; second.err != nil {
				t.Error("the second: ", second.err)
			}

			done("share")
			loseSilently(t, c, database)
			done("a database that is silent, and goes on")
			database("kill")
			if _, err := makeConfigMap(t, c, "while-away"); err == nil {
				t.Error("a write without a database succeeded")
			}
			done("a write without the database")
			database("start")
			done("start of the database")
			eventually.Nil(t, "a write after the database is back", func() error {
				_, err := makeConfigMap(t, c, "back")
				return err
			})
			done("the first write after it")
			eventually.Nil(t, "the controllers work again", func() error { return deploy(t, c, "again") })
			done("the controllers after it")
			c.down(t)
			done("stop")
			if text := c.log.String(); strings.Contains(text, "ss/w0rd") || strings.Contains(text, "p%40ss") {
				t.Errorf("the password is in the log:\n%s", text)
			}

			c = up(t, dir, configure)
			done("start again")
			if _, err := c.CoreV1().ConfigMaps("default").Get(t.Context(), "back", metav1.GetOptions{}); err != nil {
				t.Error("after a restart: ", err)
			}
			c.down(t)
		})
	}
}

// silence is how long an answer may take while the database is silent: less than the timeout of any request, and
// enough for a busy machine.
const silence = 25 * time.Second

// loseSilently stops the database, which closes no connection. The server says so, fails requests soon, answers no consistent read
// from a cache, and goes on when the database does.
func loseSilently(t *testing.T, c *cluster, database func(verb string)) {
	t.Helper()
	ctx, maps := t.Context(), c.CoreV1().ConfigMaps("default")
	list, err := maps.List(ctx, metav1.ListOptions{})
	fatal(t, err)
	events, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion, FieldSelector: "metadata.name=after-silence"})
	fatal(t, err)
	defer events.Stop()
	health := func(path, exclude string) (string, error) {
		text, err := c.RESTClient().Get().AbsPath(path).Param("verbose", "").Param("exclude", exclude).DoRaw(ctx)
		return string(text), err
	}
	database("pause")
	resume := sync.OnceFunc(func() { database("resume") })
	defer resume()
	began := time.Now()
	soon := func(what string) {
		t.Helper()
		if took := time.Since(began); took > silence {
			t.Errorf("%s without the database took %v", what, took)
		}
		began = time.Now()
	}
	for _, path := range []string{"/readyz", "/livez"} {
		if text, err := health(path, ""); err == nil || !strings.Contains(text, "[-]etcd failed") {
			t.Errorf("%s without the database: %v\n%s", path, err, text)
		}
		soon(path)
	}
	if text, err := health("/livez", "etcd"); err != nil {
		t.Errorf("/livez?exclude=etcd without the database: %v\n%s", err, text)
	}
	soon("/livez?exclude=etcd")
	if _, err := maps.List(ctx, metav1.ListOptions{}); err == nil {
		t.Error("a consistent list without the database was answered")
	}
	soon("a consistent list")
	if _, err := maps.Get(ctx, "one", metav1.GetOptions{}); err == nil || apierrors.IsNotFound(err) {
		t.Errorf("a get without the database: %v", err)
	}
	soon("a get")
	if _, err := makeConfigMap(t, c, "in-silence"); err == nil {
		t.Error("a write without the database succeeded")
	}
	soon("a write")
	if _, err := maps.List(ctx, metav1.ListOptions{ResourceVersion: "0"}); err != nil {
		t.Errorf("a list from the cache without the database: %v", err)
	}
	resume()
	eventually.Nil(t, "/readyz after the database goes on", func() error { _, err := health("/readyz", ""); return err })
	eventually.Nil(t, "a write after the database goes on", func() error {
		_, err := makeConfigMap(t, c, "after-silence")
		if apierrors.IsAlreadyExists(err) { // by an attempt whose answer was lost
			return nil
		}
		return err
	})
	select {
	case e := <-events.ResultChan():
		if m, ok := e.Object.(*corev1.ConfigMap); !ok || e.Type != "ADDED" || m.Name != "after-silence" {
			t.Errorf("watched %v %v", e.Type, e.Object)
		}
	case <-time.After(patience):
		t.Error("the watch saw nothing after the database went on")
	}
}

func makeConfigMap(t *testing.T, c *cluster, name string) (*corev1.ConfigMap, error) {
	return c.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"k": "v"}}, metav1.CreateOptions{})
}

// deploy creates a Deployment, and returns an error unless it has its Pods.
func deploy(t *testing.T, c *cluster, name string) error {
	const replicas = 3
	c.AppsV1().Deployments("default").Create(t.Context(), deployment(name, replicas), metav1.CreateOptions{})
	pods, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
	if err == nil && len(pods.Items) != replicas {
		err = fmt.Errorf("%d Pods, want %d", len(pods.Items), replicas)
	}
	return err
}

// shareAll uses two servers of one cluster. A watch and a consistent list at one server see
// writes at the other, and the kubernetes Service has both addresses.
func shareAll(t *testing.T, first, second *cluster) {
	t.Helper()
	ctx := t.Context()
	list, err := second.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	fatal(t, err)
	events, err := second.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion, FieldSelector: "metadata.name=shared"})
	fatal(t, err)
	defer events.Stop()
	made, err := makeConfigMap(t, first, "shared")
	fatal(t, err)
	list, err = second.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil || !slices.ContainsFunc(list.Items, func(m corev1.ConfigMap) bool { return m.UID == made.UID }) {
		t.Errorf("the other server's list right after: %d items, %v, want the new one", len(list.Items), err)
	}
	select {
	case e := <-events.ResultChan():
		if m, ok := e.Object.(*corev1.ConfigMap); !ok || m.UID != made.UID {
			t.Errorf("the other server's watch saw %v %v", e.Type, e.Object)
		}
	case <-time.After(patience):
		t.Errorf("the other server's watch saw nothing within %v", patience)
	}
	eventually.Nil(t, "both are endpoints of the Service kubernetes", func() error {
		all, err := first.endpoints(t)
		if err == nil && len(all) != 2 {
			err = fmt.Errorf("endpoints %v, want two", all)
		}
		return err
	})
}
