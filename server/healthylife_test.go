package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server"
)

// restarts is how often a server starts again: some lines come of races that a start does not always lose.
const restarts = 3

// wantNoProblems checks the log of a server that has stopped.
func (c *cluster) wantNoProblems(t *testing.T, what string) {
	t.Helper()
	c.down(t)
	if lines := warnings.FindAllString(c.log.String(), -1); len(lines) > 0 {
		t.Errorf("%s logs %d lines, want none:\n%s", what, len(lines), strings.Join(lines, "\n"))
	}
}

// A start, a stop, a restart, a fork, a reset and the end of a namespace with content and of a custom resource are no problems, and the log has no
// warning and no error.
func TestAHealthyLifeLogsNoProblem(t *testing.T) {
	dir := t.TempDir()
	for i := range restarts {
		c := up(t, dir, nil)
		c.wantNoProblems(t, fmt.Sprint("start ", i+1))
	}
	c := up(t, dir, func(config *server.Config) { config.Log.SetLevel(logrus.DebugLevel) }) // demoted lines are at debug
	asked := control.New(c.dir)
	defer asked.Close()
	var snapshot bytes.Buffer
	fatal(t, asked.Snapshot(t.Context(), &snapshot, control.Settle))
	create(t, c.CoreV1().ConfigMaps("default"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	if result, err := asked.Reset(t.Context(), &snapshot, control.Settle); err != nil || result.Surplus != 1 {
		t.Errorf("reset: %+v, %v; want one object to go", result, err)
	}

	definition := boatDefinition()
	create(t, c.definitions(t), definition)
	client := c.dynamic.Resource(boats).Namespace("default")
	eventually.Nil(t, "boats are served", func() error {
		_, err := client.List(t.Context(), metav1.ListOptions{})
		return err
	})
	port := create(t, c.CoreV1().ConfigMaps("default"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "port"}})
	owned := boat("owned", map[string]any{}, nil)
	owned.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: port.Name, UID: port.UID}})
	if _, err := client.Create(t.Context(), owned, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	fatal(t, c.CoreV1().ConfigMaps("default").Delete(t.Context(), port.Name, metav1.DeleteOptions{}))
	eventually.Nil(t, "the garbage collector knows boats", func() error {
		_, err := client.Get(t.Context(), "owned", metav1.GetOptions{})
		return wantNotFound(err)
	})
	fatal(t, c.definitions(t).Delete(t.Context(), definition.Name, metav1.DeleteOptions{}))
	eventually.Nil(t, "upstream's own line about it is demoted", func() error {
		if text := c.log.String(); !strings.Contains(text, `demoted="the type was deleted, and the controllers stop watching it soon"`) {
			return errors.New("there is no such line")
		}
		return nil
	})
	c.wantNoProblems(t, "a server that was reset")
	fork := up(t, t.TempDir(), func(config *server.Config) { config.ForkFrom, config.SimulateNodes = dir, []string{"2"} })
	for range 3 { // controllers and the scheduler race with the deletion
		ns := fork.namespace(t)
		fork.fill(t, ns)
		fatal(t, fork.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}))
		gone(t, fork.CoreV1().Namespaces(), ns)
	}
	fork.wantNoProblems(t, "a fork")
}

// The same with a database. kine logs as well.
func TestControlPlaneOnADatabaseLogsNoProblem(t *testing.T) {
	for _, kind := range []string{"postgres", "mysql"} {
		t.Run(kind, func(t *testing.T) {
			name := "KARVE_TEST_" + strings.ToUpper(kind)
			endpoint := os.Getenv(name)
			if endpoint == "" {
				t.Skipf("%s is not set: scripts/external-databases starts a database and sets it", name)
			}
			own, dir := fmt.Sprintf("healthy%d", time.Now().UnixNano()), t.TempDir()
			for i := range restarts + 1 {
				c := up(t, dir, func(c *server.Config) { c.DatastoreEndpoint, c.AdvertiseAddress = endpoint+own, "192.0.2.1" })
				c.wantNoProblems(t, fmt.Sprint("start ", i+1))
			}
		})
	}
}
