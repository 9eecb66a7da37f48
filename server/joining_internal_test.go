package server

import (
	"slices"
	"testing"

	"github.com/karve-k8s/karve/server/lifecycle"
)

// On a datastore that others can use, a server without controllers leaves the objects for kubeadm join to
// the one that runs them.
func TestJoiningIsLeftToControllers(t *testing.T) {
	for _, c := range []struct {
		noControllers bool
		etcd          string
		want          bool
	}{
		{false, "", true},
		{true, "", true},
		{false, "http://127.0.0.1:0", true},
		{true, "http://127.0.0.1:0", false},
	} {
		config := quietConfig(t)
		config.SecurePort, config.InsecurePort = 0, 0
		config.NoControllers, config.EtcdListen = c.noControllers, c.etcd
		full := config.complete()
		plan, releaseGates, err := full.plan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		claim, err := plan.claim(full.Log)
		if err != nil {
			t.Fatal(err)
		}
		s := assemble(plan, claim, lifecycle.NewStart())
		got := slices.ContainsFunc(s.parts(), func(p lifecycle.Part) bool { return p.Name == joiningPart })
		if got != c.want {
			t.Errorf("--no-controllers=%v, --etcd-listen %q: the objects for kubeadm join are maintained: %v, want %v", c.noControllers, c.etcd, got, c.want)
		}
		claim.release()
		releaseGates()
	}
}
