package apiserver

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

// upstreamsCommand creates the command only once, because it installs handlers for the
// process' signals.
var upstreamsCommand = sync.OnceValue(app.NewAPIServerCommand)

// Under the name kube-apiserver, Karve has the flags of upstream's command, with upstream's
// defaults except for one.
func TestFlagsAreUpstreams(t *testing.T) {
	// The default of the gates' flag is what the process has set. The first call undoes what
	// an earlier test has set.
	if _, err := ParseUpstream(nil); err != nil {
		t.Fatal(err)
	}
	ours, err := ParseUpstream(nil)
	if err != nil {
		t.Fatal(err)
	}
	theirs, seen := upstreamsCommand().Flags(), 0
	theirs.VisitAll(func(f *pflag.Flag) {
		seen++
		own := ours.all.Lookup(f.Name)
		switch {
		case own == nil:
			t.Errorf("--%s is not known", f.Name)
		case f.Name == "shutdown-watch-termination-grace-period":
			if own.DefValue != watchGrace.String() {
				t.Errorf("--%s: %s by default, want %v", f.Name, own.DefValue, watchGrace)
			}
		case own.DefValue != f.DefValue || own.NoOptDefVal != f.NoOptDefVal || own.Usage != f.Usage || own.Value.Type() != f.Value.Type():
			t.Errorf("--%s: %s %s %q by default, upstream's %s %s %q", f.Name, own.Value.Type(), own.NoOptDefVal, own.DefValue, f.Value.Type(), f.NoOptDefVal, f.DefValue)
		}
	})
	ours.all.VisitAll(func(f *pflag.Flag) {
		if theirs.Lookup(f.Name) == nil {
			t.Errorf("upstream has no --%s", f.Name)
		}
	})
	if seen < 100 {
		t.Errorf("upstream has %d flags", seen)
	}
}

// Karve reads a command line as upstream's command does.
func TestParseUpstream(t *testing.T) {
	u, err := ParseUpstream([]string{"--etcd_servers=http://a,http://b", "--secure-port", "1234", "--feature-gates=A=true", "--feature-gates=B=false", "--allow-privileged"})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(u.Etcd.StorageConfig.Transport.ServerList, " "); got != "http://a http://b" {
		t.Errorf("--etcd_servers: %s", got)
	}
	if u.SecureServing.BindPort != 1234 || !u.AllowPrivileged || !u.Given("secure-port") || u.Given("bind-address") {
		t.Errorf("port %d, privileged %v, given %v %v", u.SecureServing.BindPort, u.AllowPrivileged, u.Given("secure-port"), u.Given("bind-address"))
	}
	for args, want := range map[string]string{
		"--etcd-severs=x":      "did you mean --etcd-servers?",
		"--quite-another=x":    "no flag --quite-another (see",
		"--secure-port=many":   "many",
		"--etcd-servers":       "needs an argument",
		"word":                 "takes flags only",
		"--allow-privileged x": "takes flags only",
	} {
		if _, err := ParseUpstream(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
	if _, err := ParseUpstream([]string{"--help"}); !errors.Is(err, pflag.ErrHelp) {
		t.Errorf("--help: %v", err)
	}
	if _, err := ParseUpstream([]string{"-h"}); !errors.Is(err, pflag.ErrHelp) {
		t.Errorf("-h: %v", err)
	}
	if _, err := u.Gates(); !errors.Is(err, ErrFeatureGates) {
		t.Errorf("gates that don't exist: %v", err)
	}
}
