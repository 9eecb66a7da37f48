//go:build linux

package durability

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/karve-k8s/karve/internal/eventually"
)

// A sharedDatabase is a real database that several servers use. scripts/several-servers starts it.
type sharedDatabase struct {
	endpoint string // of a cluster of the test's own
	args     []string
	controls []string // of each member: a program that starts and kills it
	members  []string // the URLs of etcd's
}

// sharedDatabases are the kinds, with the variable of the endpoint.
var sharedDatabases = map[string]string{
	"postgres": "KARVE_TEST_POSTGRES",
	"mysql":    "KARVE_TEST_MYSQL",
	"etcd":     "KARVE_TEST_ETCD3",
}

func newSharedDatabase(t *testing.T, kind string) sharedDatabase {
	t.Helper()
	name := sharedDatabases[kind]
	endpoint := os.Getenv(name)
	if endpoint == "" {
		t.Skipf("%s is not set: scripts/several-servers starts a database and sets it", name)
	}
	own := fmt.Sprintf("several%d", time.Now().UnixNano())
	d := sharedDatabase{endpoint: endpoint + own, controls: strings.Fields(os.Getenv(name + "_CONTROL"))}
	if kind == "etcd" {
		d.endpoint, d.members = endpoint, strings.Split(endpoint, ",")
		d.args = []string{"--kube-apiserver-arg", "etcd-prefix=/" + own}
	} else {
		d.args = []string{"--datastore-cafile", os.Getenv("KARVE_TEST_DATABASE_CA")}
	}
	return d
}

// control starts or kills members: kill, and the name of a signal.
func (d sharedDatabase) control(t *testing.T, members []int, args ...string) {
	t.Helper()
	var all []*exec.Cmd
	for _, n := range members { // at once, because a member alone does not serve
		cmd := exec.Command(d.controls[n], args...)
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all = append(all, cmd)
	}
	for _, cmd := range all {
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v: %v", cmd.Args, err)
		}
	}
}

// everyMember is for control.
func (d sharedDatabase) everyMember() []int {
	var all []int
	for n := range d.controls {
		all = append(all, n)
	}
	return all
}

// member returns a member of an etcd that leads, or one that follows.
func (d sharedDatabase) member(t *testing.T, leads bool) int {
	t.Helper()
	var found int
	eventually.Nil(t, "a member of etcd knows whether it leads", func() error {
		found = slices.IndexFunc(d.members, func(url string) bool {
			page, err := get(url + "/metrics")
			return err == nil && strings.Contains(page, "\netcd_server_has_leader 1\n") && strings.Contains(page, "\netcd_server_is_leader 1\n") == leads
		})
		if found < 0 {
			return fmt.Errorf("none of %v", d.members)
		}
		return nil
	})
	return found
}
