package server

import (
	"slices"
	"testing"
	"time"

	"github.com/karve-k8s/karve/server/lifecycle"
	"github.com/karve-k8s/karve/server/notify"
	"github.com/karve-k8s/karve/server/startup"
)

func TestParseEndpoint(t *testing.T) {
	for value, want := range map[string]endpoint{
		"lb.example.org":      {"lb.example.org", ""},
		"lb.example.org:7443": {"lb.example.org", "7443"},
		"192.0.2.1":           {"192.0.2.1", ""},
		"192.0.2.1:1":         {"192.0.2.1", "1"},
		"2001:db8::1":         {"2001:db8::1", ""},
		"[2001:db8::1]":       {"2001:db8::1", ""},
		"[2001:db8::1]:6443":  {"2001:db8::1", "6443"},
	} {
		if got, err := parseEndpoint(value); err != nil || *got != want {
			t.Errorf("%s: got %+v and error %v, want %+v", value, got, err, want)
		}
	}
	for _, value := range []string{
		"https://lb.example.org", "lb.example.org:", "lb.example.org:0", "lb.example.org:70000", "lb.example.org:http", ":6443",
		"*.example.org", "0.0.0.0", "[::]:6443", "fe80::1%eth0", "two names", "[lb.example.org", "a:b:c", "[]",
	} {
		if got, err := parseEndpoint(value); err == nil {
			t.Errorf("%s: got %+v, want an error", value, got)
		}
	}
}

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
		s := assemble(plan, claim, start{began: time.Now(), trace: startup.New(time.Now()), systemd: notify.Take()})
		got := slices.ContainsFunc(s.parts(), func(p lifecycle.Part) bool { return p.Name == joiningPart })
		if got != c.want {
			t.Errorf("--no-controllers=%v, --etcd-listen %q: the objects for kubeadm join are maintained: %v, want %v", c.noControllers, c.etcd, got, c.want)
		}
		claim.release()
		releaseGates()
	}
}
