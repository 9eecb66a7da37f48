package server

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	utilcompatibility "k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	basecompatibility "k8s.io/component-base/compatibility"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/server/controllers"
	"github.com/karve-k8s/karve/server/marker"
)

// quietConfig returns a valid configuration without a log.
func quietConfig(t *testing.T) Config {
	t.Helper()
	log, err := logbridge.New(&bytes.Buffer{}, "text", "error")
	fatal(t, err)
	logbridge.Install(log)
	return Config{DataDir: filepath.Join(t.TempDir(), "data"), SecurePort: 6443, InsecurePort: 8080, Log: log}
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Each row is one mistake: its change to a valid configuration, and the words of its report,
// which include the option's name.
var mistakes = map[string]struct {
	make func(*Config)
	want []string
}{
	"no data directory":     {func(c *Config) { c.DataDir = "" }, []string{"--data-dir", "a directory"}},
	"secure port":           {func(c *Config) { c.SecurePort = 70000 }, []string{"--secure-port 70000"}},
	"one port for both":     {func(c *Config) { c.InsecurePort = c.SecurePort }, []string{"--insecure-port 6443", "--secure-port"}},
	"bind address":          {func(c *Config) { c.BindAddress = "localhost" }, []string{`--bind-address "localhost"`}},
	"advertise address":     {func(c *Config) { c.AdvertiseAddress = "300.1.1.1" }, []string{`--advertise-address "300.1.1.1"`}},
	"advertised link-local": {func(c *Config) { c.AdvertiseAddress = "169.254.1.1" }, []string{"--advertise-address 169.254.1.1: ", "may not be in the link-local range"}},
	"URL for users":         {func(c *Config) { c.AdvertiseURL = "http://lb.example" }, []string{"--advertise-url http://lb.example", "such as https://karve.example:6443"}},
	"insecure to whom":      {func(c *Config) { c.unknownOwners = true }, []string{"--insecure-port", "does not tell which user", "--insecure-any-user"}},
	"etcd to whom": {func(c *Config) {
		c.unknownOwners, c.InsecureAnyUser, c.EtcdListen = true, true, "http://127.0.0.1:0"
	}, []string{"--etcd-listen http://127.0.0.1:0", "does not tell which user", "use https://"}},
	"insecure to all":         {func(c *Config) { c.InsecureBindAddress = "0.0.0.0" }, []string{"--insecure-bind-address", "--insecure-allow-remote"}},
	"service range":           {func(c *Config) { c.ServiceClusterIPRange = "10.96.0.0/33" }, []string{"--service-cluster-ip-range 10.96.0.0/33"}},
	"too many Services":       {func(c *Config) { c.ServiceClusterIPRange = "10.96.0.0/16,fd00::/63" }, []string{"--service-cluster-ip-range fd00::/63: want an IPv6 range of size /64 at most"}},
	"three ranges":            {func(c *Config) { c.ServiceClusterIPRange = "10.1.0.0/16,fd00::/112,10.2.0.0/16" }, []string{"--service-cluster-ip-range", "want one range"}},
	"cluster range":           {func(c *Config) { c.ClusterCIDR = "pods" }, []string{"--cluster-cidr pods"}},
	"overlap":                 {func(c *Config) { c.ClusterCIDR = "10.100.0.0/16" }, []string{"--cluster-cidr 10.100.0.0/16 overlaps --service-cluster-ip-range 10.96.0.0/12"}},
	"certificate without key": {func(c *Config) { c.TLSCertFile = "config_test.go" }, []string{"--tls-cert-file and --tls-private-key-file"}},
	"SSH without a user":      {func(c *Config) { c.SSHJump = "karve@bastion" }, []string{"--ssh-jump karve@bastion", "--ssh-user"}},
	"SSH user":                {func(c *Config) { c.SSHUser = "a b" }, []string{`--ssh-user "a b"`}},
	"SSH bastion":             {func(c *Config) { c.SSHUser, c.SSHJump = "karve", "bastion" }, []string{`--ssh-jump "bastion"`, "USER@HOST"}},
	"SSH key is missing":      {func(c *Config) { c.SSHUser, c.SSHKeyFile = "karve", "/no/key" }, []string{"--ssh-keyfile", "/no/key", "ssh-keygen"}},
	"SSH key for everybody":   {func(c *Config) { c.SSHUser, c.SSHKeyFile = "karve", "config_test.go" }, []string{"--ssh-keyfile", "chmod 0600 config_test.go"}},
	"unreadable file":         {func(c *Config) { c.DatastoreCAFile = "/nowhere/ca" }, []string{"--datastore-cafile", "/nowhere/ca"}},
	"SAN":                     {func(c *Config) { c.TLSSANs = []string{"good.example.org", "not a name"} }, []string{"--tls-san", "not a name"}},
	"datastore":               {func(c *Config) { c.DatastoreEndpoint = "redis://me:secret@db" }, []string{"--datastore-endpoint", "not a URL of a datastore"}},
	"durability":              {func(c *Config) { c.Durability = "none" }, []string{`--durability "none"`, "full or relaxed"}},
	"etcd listener":           {func(c *Config) { c.EtcdListen = "127.0.0.1:2379" }, []string{"--etcd-listen", "https://ADDRESS:PORT"}},
	"etcd listener's path":    {func(c *Config) { c.EtcdListen = "https://me:secret@127.0.0.1:2379" }, []string{"--etcd-listen: want https://"}},
	"etcd without TLS":        {func(c *Config) { c.EtcdListen = "http://0.0.0.0:2379" }, []string{"--etcd-listen http://0.0.0.0:2379", "use https://"}},
	"etcd before an etcd":     {func(c *Config) { c.DatastoreEndpoint, c.EtcdListen = "http://127.0.0.1:1", "https://:0" }, []string{"--etcd-listen https://:0", "is an etcd"}},
	"cluster token of the built-in datastore": {func(c *Config) { c.ClusterTokenFile = "/the/token" }, []string{"--cluster-token-file /the/token", "--datastore-endpoint", "--etcd-listen"}},
	"etcd before a database": {func(c *Config) {
		c.DatastoreEndpoint, c.EtcdListen = "postgres://me@db/x", "https://:0"
	}, []string{"--etcd-listen https://:0", "leave the flag out", "--datastore-endpoint"}},
	"cluster token in memory": {func(c *Config) {
		c.ClusterTokenFile, c.DatastoreEndpoint, c.EtcdListen = "/the/token", "memory://", "https://127.0.0.1:0"
	}, []string{"--cluster-token-file /the/token", "in memory"}},
	"cluster token is missing":         {func(c *Config) { c.ClusterTokenFile, c.DatastoreEndpoint = "/no/token", "http://127.0.0.1:1" }, []string{"--cluster-token-file", "/no/token", "karve cluster-token create"}},
	"controller":                       {func(c *Config) { c.DisableControllers = []string{"deploymnet"} }, []string{"--disable-controllers", `"deploymnet"`, `did you mean "deployment"?`}},
	"API server's flag":                {func(c *Config) { c.APIServerArgs = []string{"event-tll=1h"} }, []string{"--kube-apiserver-arg", `"event-tll"`, `did you mean "event-ttl"?`}},
	"API server's own flag":            {func(c *Config) { c.APIServerArgs = []string{"secure-port=1"} }, []string{"--kube-apiserver-arg", "use --secure-port"}},
	"admission plugin":                 {func(c *Config) { c.APIServerArgs = []string{"enable-admission-plugins=Nonsense"} }, []string{"enable-admission-plugins", "Nonsense"}},
	"feature gate":                     {func(c *Config) { c.APIServerArgs = []string{"feature-gates=NoSuchThing=true"} }, []string{"feature-gates", "NoSuchThing"}},
	"controllers' flag":                {func(c *Config) { c.ControllerManagerArgs = []string{"node-monitor-perod=1s"} }, []string{"--kube-controller-manager-arg", `did you mean "node-monitor-period"?`}},
	"prefix of the built-in datastore": {func(c *Config) { c.APIServerArgs = []string{"etcd-prefix=/elsewhere"} }, []string{"--kube-apiserver-arg", "etcd-prefix", "--datastore-endpoint"}},
	"controllers' own flag":            {func(c *Config) { c.ControllerManagerArgs = []string{"secure-port=1"} }, []string{"--kube-controller-manager-arg", "have no port of their own"}},
	"resync of the controllers":        {func(c *Config) { c.ControllerManagerArgs = []string{"min-resync-period=1m"} }, []string{"--kube-controller-manager-arg: min-resync-period=1m0s: want 10m0s at least"}},
	"election without others":          {func(c *Config) { c.ControllerManagerArgs = []string{"leader-elect"} }, []string{"--kube-controller-manager-arg: leader-elect=true", "the built-in datastore serves one server", "--etcd-listen"}},
	"lease without an election": {func(c *Config) {
		c.EtcdListen, c.ControllerManagerArgs = "http://127.0.0.1:0", []string{"leader-elect=false", "leader-elect-lease-duration=30s"}
	}, []string{"--kube-controller-manager-arg: leader-elect-lease-duration", "leader-elect=false"}},
	"lease shorter than the renewal": {func(c *Config) {
		c.EtcdListen, c.ControllerManagerArgs = "http://127.0.0.1:0", []string{"leader-elect-lease-duration=10s"}
	}, []string{"--kube-controller-manager-arg: leader-elect-lease-duration=10s", "leader-elect-renew-deadline, which is 10s"}},
	"nodes without controllers, of several servers": {func(c *Config) {
		c.EtcdListen, c.NoControllers, c.SimulateNodes = "http://127.0.0.1:0", true, []string{"1"}
	}, []string{"--simulate-nodes with --no-controllers", "the one that runs the controllers", "leave out"}},
	"nodes that are less than none":       {func(c *Config) { c.SimulateNodes = []string{"-1"} }, []string{`--simulate-nodes -1: "-1" is not a number of nodes`}},
	"simulated nodes beside the Services": {func(c *Config) { c.SimulateNodes, c.ServiceClusterIPRange = []string{"1"}, "100.64.0.0/16" }, []string{"--cluster-cidr"}},
	"defaults of Pods without simulated nodes": {func(c *Config) { c.SimulatePods = []string{"run-for=1s"} },
		[]string{"--simulate-pods and --simulate-listen are for simulated nodes", "add --simulate-nodes"}},
	"the insecure port behind Pods": {func(c *Config) {
		c.SimulateNodes, c.DisableInsecure, c.InsecurePort, c.SimulateListen = []string{"1"}, false, 18080, []string{"127.0.0.1:18080"}
	}, []string{"--simulate-listen 127.0.0.1:18080: its port is that of --insecure-port", "name another port"}},
	"another kind of lease": {func(c *Config) {
		c.EtcdListen, c.SchedulerArgs = "http://127.0.0.1:0", []string{"leader-elect-resource-lock=configmaps"}
	}, []string{"--kube-scheduler-arg: leader-elect-resource-lock=configmaps", "leases"}},
	"leader migration":     {func(c *Config) { c.ControllerManagerArgs = []string{"enable-leader-migration=true"} }, []string{"--kube-controller-manager-arg: enable-leader-migration", "cloud-controller-manager"}},
	"scheduler's flag":     {func(c *Config) { c.SchedulerArgs = []string{"kube-api-qsp=5"} }, []string{"--kube-scheduler-arg", `did you mean "kube-api-qps"?`}},
	"backups in a file":    {func(c *Config) { c.BackupDir = os.DevNull }, []string{"--backup-dir /dev/null", "not a directory"}},
	"scheduler's own flag": {func(c *Config) { c.SchedulerArgs = []string{"secure-port=1"} }, []string{"--kube-scheduler-arg", "no port of its own"}},
}

func TestValidateNamesTheOption(t *testing.T) {
	prefix := []string{"etcd-prefix=/elsewhere"} // an etcd may hold several clusters, and a database may be shared
	for _, c := range []Config{
		{}, {SimulateNodes: []string{"1"}, ServiceClusterIPRange: "100.64.0.0/16", ClusterCIDR: "10.1.0.0/16"}, {SimulateNodes: []string{"1"}, ServiceClusterIPRange: "10.96.0.0/12,fd00:10::/112"},
		{DatastoreEndpoint: "http://127.0.0.1:1", APIServerArgs: prefix}, {DatastoreEndpoint: "postgres://user@127.0.0.1:1/db", APIServerArgs: prefix},
	} {
		c.DataDir = filepath.Join(t.TempDir(), "data")
		if err := c.Validate(t.Context()); err != nil {
			t.Errorf("a valid configuration, %+v: got %v", c, err)
		}
		if _, err := os.Stat(c.DataDir); !os.IsNotExist(err) {
			t.Errorf("a validation made the data directory: %v", err)
		}
	}
	for name, mistake := range mistakes {
		t.Run(name, func(t *testing.T) {
			c := quietConfig(t)
			mistake.make(&c)
			err := c.Validate(t.Context())
			if err == nil {
				t.Fatal("got no error")
			}
			for _, want := range mistake.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %q, want %q in it", err, want)
				}
			}
			if lines := strings.Split(err.Error(), "\n"); len(lines) > 1 {
				t.Errorf("one mistake is told in %d lines:\n%v", len(lines), err)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the error has a password in it: %v", err)
			}
		})
	}
	// Upstream's globals must not keep anything of the mistakes.
	if err := quietConfig(t).Validate(t.Context()); err != nil {
		t.Errorf("a valid configuration after all those: got %v", err)
	}
}

// If the system cannot tell which user opened a connection, there is no insecure port, unless
// the configuration allows every user.
func TestInsecurePortOfUnknownOwners(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(*Config)
		want bool // an insecure port
	}{
		"known":              {func(*Config) {}, true},
		"known, any user":    {func(c *Config) { c.InsecureAnyUser = true }, true},
		"unknown":            {func(c *Config) { c.unknownOwners = true }, false},
		"unknown, any user":  {func(c *Config) { c.unknownOwners, c.InsecureAnyUser = true, true }, true},
		"unknown, off":       {func(c *Config) { c.unknownOwners, c.DisableInsecure = true, true }, false},
		"unknown, TLS etcd":  {func(c *Config) { c.unknownOwners, c.DisableInsecure, c.EtcdListen = true, true, "https://127.0.0.1:0" }, false},
		"unknown, open etcd": {func(c *Config) { c.unknownOwners, c.DisableInsecure, c.EtcdListen = true, true, "http://127.0.0.1:0" }, false},
	} {
		c := quietConfig(t)
		tc.make(&c)
		options := map[string]bool{}
		for _, p := range c.Ports() {
			options[p.Option] = true
		}
		if options[insecurePort] != tc.want {
			t.Errorf("%s: got ports %v, want an insecure one: %v", name, options, tc.want)
		}
		if wantEtcd := c.EtcdListen == "https://127.0.0.1:0"; options[etcdPort] != wantEtcd {
			t.Errorf("%s: got ports %v, want the etcd API's: %v", name, options, wantEtcd)
		}
	}
}

// A validation knows the gates that a configuration asks for. It does not change those of the
// process, including those that the program has set itself.
func TestValidateTouchesNoGates(t *testing.T) {
	const own, needed = "CRIListStreaming", "UnknownVersionInteroperabilityProxy"
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, own, true)
	state := func() string {
		version := utilcompatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
		return fmt.Sprint(utilfeature.DefaultFeatureGate, " ", version.EmulationVersion(), " ", version.MinCompatibilityVersion())
	}
	before := state()
	c := quietConfig(t)
	for _, args := range [][]string{
		nil,
		{"feature-gates=AllAlpha=true"},
		{"feature-gates=" + own + "=false"},
		{"feature-gates=NoSuchThing=true"},
		{"emulated-version=1.35"},
	} {
		c.APIServerArgs = args
		_ = c.Validate(t.Context())
		if after := state(); after != before {
			t.Errorf("%v: the process' gates are %s after a validation, and were %s", args, after, before)
		}
	}
	// Upstream reads the process' gates to report what an option needs.
	peer := "peer-advertise-ip=192.0.2.1"
	c.APIServerArgs = []string{peer, "feature-gates=" + needed + "=false"}
	if err := c.Validate(t.Context()); err == nil || !strings.Contains(err.Error(), needed) {
		t.Errorf("without the gate: got %v, want a complaint about %s", err, needed)
	}
	c.APIServerArgs = []string{peer, "feature-gates=" + needed + "=true"}
	if err := c.Validate(t.Context()); err != nil && strings.Contains(err.Error(), needed) {
		t.Errorf("with the gate: got %v", err)
	}
}

func TestValidateReportsAllAtOnce(t *testing.T) {
	c := quietConfig(t)
	var want []string
	for _, name := range []string{"secure port", "insecure to all", "advertise address", "overlap", "unreadable file", "SAN", "datastore",
		"controller", "API server's flag", "controllers' flag", "scheduler's flag"} {
		mistakes[name].make(&c)
		want = append(want, mistakes[name].want...)
	}
	err := c.Validate(t.Context())
	if err == nil {
		t.Fatal("got no error")
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("got\n%v\nwant %q in it", err, w)
		}
	}
}

// A refused start leaves nothing behind, not even a directory, whatever the reason is.
func TestRefusedStartLeavesNothing(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	defer taken.Close()
	for name, tc := range map[string]struct {
		make func(*Config)
		want string
	}{
		"an option":  {func(c *Config) { c.InsecurePort = 70000 }, "--insecure-port 70000"},
		"a port":     {func(c *Config) { c.BindAddress, c.SecurePort = "127.0.0.1", portOf(t, taken) }, "in use"},
		"upstream's": {func(c *Config) { c.APIServerArgs = []string{"event-ttl=soon"} }, "event-ttl"},
		"a file":     {func(c *Config) { c.DataDir = os.DevNull }, "--data-dir: " + os.DevNull + " is a file"},
	} {
		t.Run(name, func(t *testing.T) {
			above := t.TempDir()
			c := quietConfig(t)
			c.DataDir = filepath.Join(above, "made", "for", "karve")
			c.SecurePort, c.InsecurePort = 0, 0
			c.Ready = func(Info) { t.Error("it was ready") }
			tc.make(&c)
			err := Run(t.Context(), c)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if left, _ := os.ReadDir(above); len(left) > 0 {
				t.Errorf("%s was left in %s", left[0].Name(), above)
			}
		})
	}
}

func TestDatastoreInAFile(t *testing.T) {
	c := quietConfig(t)
	c.SecurePort, c.InsecurePort, c.DatastoreEndpoint = 0, 0, "sqlite://"+os.DevNull+"/x"
	if err, want := Run(t.Context(), c), "--datastore-endpoint: "+os.DevNull+" is a file"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// Others could place a database or keys in a directory to which they may write. One that is Karve's, or empty, is closed to them.
func TestDirectoryThatOthersMayWriteTo(t *testing.T) {
	log := quietConfig(t).Log
	for name, test := range map[string]struct {
		file string
		want string
		mode os.FileMode
	}{
		"empty":       {"", "", 0o775},
		"Karve's":     {marker.File, "", 0o775},
		"with others": {"other", "chmod o-w", 0o777},
	} {
		dir := t.TempDir()
		if test.file == marker.File {
			fatal(t, marker.Write(dir))
		} else if test.file != "" {
			fatal(t, os.WriteFile(filepath.Join(dir, test.file), nil, 0o600))
		}
		fatal(t, os.Chmod(dir, 0o777))
		err := closeToOthers(dir, log)
		if (err == nil) != (test.want == "") || err != nil && (!strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), dir)) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != test.mode {
			t.Errorf("%s: got %v, %v, want mode %o", name, info.Mode(), err, test.mode)
		}
	}
}

// A second server reports which process has the directory, and which port is in use.
func TestSecondServerNamesTheDirectoryAndPortsInUse(t *testing.T) {
	c := quietConfig(t)
	c.SecurePort, c.InsecurePort = 0, 0
	plan, err := c.complete().parse().validate(t.Context())
	fatal(t, err)
	first, err := plan.claim(c.Log)
	fatal(t, err)
	defer first.release()
	second := c
	second.SecurePort = portOf(t, first.secure)
	second.InsecurePort = portOf(t, first.insecure)
	err = Run(t.Context(), second)
	if err == nil {
		t.Fatal("got no error")
	}
	for _, want := range []string{"--data-dir", "--secure-port", "--insecure-port", "in use"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got\n%v\nwant %q in it", err, want)
		}
	}
}

func portOf(t *testing.T, l net.Listener) int {
	t.Helper()
	return l.Addr().(*net.TCPAddr).Port
}

// Upstream finds these mistakes when it builds the controller, and ends the program.
func TestSizesOfNodesPodRanges(t *testing.T) {
	const dual, first, second = "10.96.0.0/12,fd00:10:96::/112", "10.96.0.0/12", "fd00:10:96::/112"
	const both = "10.1.0.0/16,fd00:1::/56"
	for _, tc := range []struct {
		services, pods string
		args           []string
		want           string // in the error; empty: none
	}{
		{dual, both, nil, ""},
		{dual, both, []string{"node-cidr-mask-size=24"}, "node-cidr-mask-size=24: the Pod ranges " + both},
		{dual, both, []string{"node-cidr-mask-size=24", "allocate-node-cidrs=false"}, ""},
		{dual, both, []string{"node-cidr-mask-size=24", "controllers=*,-nodeipam"}, ""},
		{dual, both, []string{"node-cidr-mask-size-ipv4=26", "node-cidr-mask-size-ipv6=72"}, ""},
		{first, "10.1.0.0/16", []string{"node-cidr-mask-size=20"}, ""},
		{first, "10.1.0.0/16", []string{"node-cidr-mask-size=20", "node-cidr-mask-size-ipv4=20"}, "leave it out"},
		{first, "10.1.0.0/16", []string{"node-cidr-mask-size-ipv6=64"}, "node-cidr-mask-size-ipv6=64: the Pod range 10.1.0.0/16"},
		{second, "fd00:1::/56", []string{"node-cidr-mask-size-ipv4=24"}, "node-cidr-mask-size-ipv4=24: the Pod range fd00:1::/56"},
		{first, "10.1.0.0/16", []string{"node-cidr-mask-size=12"}, "--cluster-cidr 10.1.0.0/16: a node's part is a /12"},
		{second, "fd00::/32", nil, "--cluster-cidr fd00::/32: a node's part is a /64"},
		{first, "10.1.0.0/16", []string{"node-cidr-mask-size=40"}, "want 32 at most"},
	} {
		c := quietConfig(t)
		c.ServiceClusterIPRange, c.ClusterCIDR, c.ControllerManagerArgs = tc.services, tc.pods, tc.args
		if err := c.Validate(t.Context()); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("--cluster-cidr %q, %v: got %v, want %q", tc.pods, tc.args, err, tc.want)
		}
	}
}

// The controllers' certificates fill in only what the user left open. Upstream refuses them if the
// user names an authority that signs everything.
func TestUsersFilesWinOverTheServersCertificates(t *testing.T) {
	store, _, err := certs.Ensure(certs.Config{Dir: t.TempDir(), NoSync: true})
	fatal(t, err)
	for name, tc := range map[string]struct {
		args          []string
		rootCA, signs string
	}{
		"no files":              {nil, store.CertFile(certs.ServerCA), store.KeyFile(certs.ServerCA)},
		"a root CA":             {[]string{"root-ca-file=/mine.crt"}, "/mine.crt", store.KeyFile(certs.ServerCA)},
		"a cluster's authority": {[]string{"cluster-signing-cert-file=/mine.crt", "cluster-signing-key-file=/mine.key"}, store.CertFile(certs.ServerCA), ""},
	} {
		o, err := controllers.Parse(controllers.Settings{Args: tc.args})
		fatal(t, err)
		o.UseCertificates(store)
		if got := o.SAController.RootCAFile; got != tc.rootCA {
			t.Errorf("%s: root CA: got %q, want %q", name, got, tc.rootCA)
		}
		if got := o.CSRSigningController.KubeletServingSignerConfiguration.KeyFile; got != tc.signs {
			t.Errorf("%s: signer of servers: got %q, want %q", name, got, tc.signs)
		}
		if errs := o.CSRSigningController.Validate(); len(errs) > 0 {
			t.Errorf("%s: upstream refuses: %v", name, errs)
		}
	}
}

// The default of --cluster-cidr follows the families of the Service addresses, and avoids them.
func TestDefaultPodRanges(t *testing.T) {
	for _, c := range []struct{ services, given, want string }{
		{"", "", "10.244.0.0/16"},
		{"10.96.0.0/16", "", "10.244.0.0/16"},
		{"10.240.0.0/12", "", "10.42.0.0/16"},
		{"10.244.3.0/24", "", "10.42.0.0/16"},
		{"fd00:10:96::/112", "", "fd00:10:244::/56"},
		{"fd00:10:244::/112", "", "fd00:10:42::/56"},
		{"10.96.0.0/16,fd00:10:96::/112", "", "10.244.0.0/16,fd00:10:244::/56"},
		{"fd00:10:96::/112,10.240.0.0/12", "", "fd00:10:244::/56,10.42.0.0/16"},
		{"10.0.0.0/8", "", ""},
		{"10.0.0.0/8,fd00:10:96::/112", "", ""},
		{"10.96.0.0/16", "10.1.0.0/16", "10.1.0.0/16"},
	} {
		config := quietConfig(t)
		config.ServiceClusterIPRange, config.ClusterCIDR = c.services, c.given
		full := config.complete()
		d := full.parse()
		if len(d.problems) > 0 || d.ClusterCIDR != c.want || d.podsChosen != (c.given == "") {
			t.Errorf("--service-cluster-ip-range %q --cluster-cidr %q: got %q, %v, want %q", c.services, c.given, d.ClusterCIDR, d.problems, c.want)
		}
	}
	simulated := quietConfig(t)
	simulated.SimulateNodes = []string{"1"}
	full := simulated.complete()
	if d := full.parse(); d.ClusterCIDR != "" {
		t.Errorf("with simulated nodes: got %q, want none: they have their own", d.ClusterCIDR)
	}
}
