// Command imports checks which way the arrows between packages point, and that
// each heavy dependency has one home. Run it as `go run ./scripts/imports`; it
// prints every arrow that should not be there, with the reason, and exits 1.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const module = "github.com/karve-k8s/karve"

// own lists, for each of our packages, which of the others it may import. A
// package that is not listed is an error: say where it belongs.
var own = map[string][]string{
	"": {
		"command",
		"internal/memory/initially", // the garbage collector is the program's to switch off
	},
	"command": {
		"addons",
		"bootstrap/kubeadm", // it changes clusterDNS in kubelet-config
		"command/clustertoken",
		"command/datadir",
		"command/kubectl",
		"command/locale",
		"command/options",
		"command/output",
		"command/servers", // addons
		"command/token",
		"datastore",
		"datastore/directory",
		"datastore/sqlitefile",
		"envtest",
		"internal/ownership",
		"internal/version",
		"node",
		"preflight",
		"server",
		"server/apiserver",
		"server/deviations",
		"server/flags",
		"server/storage", // where --datastore-endpoint is
	},
	"command/nodes": {"simulate"}, // which nodes are no machines
	"command/datadir": {
		"certs",
		"command/nodes",
		"command/options",
		"command/output",
		"command/servers",
		"control",
		"datastore",
		"datastore/admin",
		"datastore/backup",
		"datastore/directory",
		"datastore/kineimport",
		"datastore/sqlitefile",
		"internal/logbridge", // kine's drivers log
		"internal/ownership",
		"migrate",
		"preflight",
		"server/snapshots", // a reset while no server runs
		"server/storage",   // where --datastore-endpoint is
		"server/tunnels",   // the key of karve ssh
		"snapshot",
	},
	"command/clustertoken": {
		"command/options",
		"internal/atomicfile",
		"internal/logbridge",
		"server/apiserver", // whether it accepts an encryption configuration
		"server/membership",
		"server/storage",
	},
	"command/endtoend": {}, // tests only
	"command/kubectl":  {"command/options", "command/servers", "datastore/directory", "internal/ownership"},
	"command/options": {
		"internal/logbridge",
		"internal/memory",
		"server",
		"server/apiserver",
		"server/flags",
		"server/membership", // the name of --cluster-token-file
		"simulate",
	},
	"command/servers": {"control", "datastore/directory", "internal/clusterinfo"},
	"command/token":   {"command/options", "command/output", "command/servers", "internal/clusterinfo"},
	"command/output":  {"datastore/sqlitefile"}, // it shows the progress of the datastore's long operations
	"server": {
		"bootstrap/kubeadm",
		"certs",
		"control", // the answer about SSH tunnels
		"datastore",
		"datastore/directory",
		"datastore/sqlitefile",
		"internal/atomicfile",
		"internal/logbridge",
		"internal/memory",
		"internal/ownership",
		"internal/version",
		"server/apiserver",
		"server/apiserver/replacements",
		"server/certificates",
		"server/controllers",
		"server/deviations",
		"server/election",
		"server/insecure",
		"server/lifecycle",
		"server/loopback",
		"server/membership",
		"server/notify",
		"server/ports",
		"server/queues",
		"server/ready",
		"server/scheduler",
		"server/sharedinformers",
		"server/snapshots",
		"server/startup",
		"server/storage",
		"server/tunnels",
		"simulate",
		"simulate/metricsapi",
	},
	"server/storage": {
		"certs", // the certificate of --etcd-listen
		"datastore",
		"datastore/admin",
		"datastore/directory",
		"kine",
		"kine/etcdapi", // whether an etcd is Karve's in another process
		"kine/external",
		"kine/inprocess",   // the first look at what the datastore has
		"server/insecure",  // --etcd-listen without TLS is for the server's own user
		"server/lifecycle", // a failure is reported while reads go on
	},
	"server/snapshots": {
		"certs", // which cluster a snapshot is of
		"control",
		"datastore",
		"datastore/backup",
		"datastore/directory",
		"datastore/sqlitefile",
		"internal/socket",
		"server/queues",  // controllers rest during a reset
		"server/startup", // a fork is a step of a start
		"server/storage", // where the datastore is
		"snapshot",
	},
	"server/membership": {
		"certs",
		"internal/atomicfile",
		"internal/ownership", // whose file a token is in
		"server/storage",     // the key of the record
	},
	"server/ports": {},
	"server/tunnels": {
		"control",             // the state of a tunnel, as karve status reads it
		"internal/atomicfile", // keys, and pinned host keys
	},
	"server/ready": {
		"server/lifecycle", // a part that has nothing to say
	},
	"server/certificates": {
		"certs",
	},
	"simulate/metricsapi": {
		"simulate",
	},
	"envtest/kubeapiserver": {
		"certs", // of controllers and scheduler
		"internal/logbridge",
		"internal/memory",
		"server/apiserver",
		"server/apiserver/replacements",
		"server/controllers",
		"server/lifecycle", // the parts of karve server, and not karve server itself
		"server/loopback",
		"server/ports",
		"server/queues",
		"server/ready",
		"server/scheduler",
		"server/storage",
	},
	"server/apiserver": {
		"bootstrap",
		"internal/logbridge",
		"internal/version",
		"kine/inprocess",
		"server/flags",
		"server/insecure",
		"server/loopback",
		"server/sharedinformers",
		"server/apiserver/openapi",
		"server/apiserver/replacements",
		"server/deviations",
	},
	"server/apiserver/openapi":      {},
	"server/apiserver/replacements": {"internal/fence", "kine/inprocess", "server/apiserver/openapi", "server/deviations", "server/idleconns", "server/loopback"}, // kine/inprocess: the API server calls the datastore of this process
	"server/deviations":             {},                                                                                                                           // every part asks whether one of its deviations is on
	"server/deviations/mirrors":     {},                                                                                                                           // what a test and scripts/upgrade compare with upstream
	"server/flags":                  {},
	"server/controllers":            {"bootstrap", "bootstrap/kubeadm", "certs", "server/election", "server/flags", "server/health", "server/sharedinformers", "server/deviations", "internal/logbridge"}, // bootstrap: what they would create first; internal/logbridge: the error that is demoted; bootstrap/kubeadm: which API groups are off; certs: the keys with which they sign
	"server/scheduler":              {"server/election", "server/flags", "server/health", "server/sharedinformers", "server/deviations"},
	"server/sharedinformers":        {"server/deviations"}, // the API server, the controllers and the scheduler use the same informers
	"server/election":               {"internal/fence"},    // which of several servers acts
	"server/health":                 {},                    // what a part reports about itself
	"server/idleconns":              {},
	"server/insecure":               {"internal/procnet", "server/idleconns"},
	"command/locale":                {},
	"internal/eventually":           {}, // tests
	"internal/filemode":             {}, // tests
	"internal/fence":                {},
	"internal/logbridge":            {},
	"server/lifecycle":              {"server/startup"},
	"server/loopback":               {"certs", "internal/fence"}, // clients show certificates
	"internal/memory":               {},
	"internal/memory/initially":     {},
	"server/notify":                 {},
	"server/queues":                 {},
	"simulate":                      {},
	"server/startup":                {"internal/atomicfile"}, // the file of --startup-trace
	"internal/version":              {},
	"addons":                        {"internal/clusterinfo"}, // what is applied to a cluster through its API
	"bootstrap":                     {"bootstrap/kubeadm"},    // a new cluster contains those objects, too
	"bootstrap/kubeadm":             {"internal/clusterinfo"},
	"certs":                         {"internal/atomicfile"}, // keys and certificates must survive a power cut
	"envtest":                       {"envtest/etcd", "internal/atomicfile", "internal/memory", "internal/version", "envtest/kubeapiserver", "server/flags"},
	"envtest/etcd":                  {"kine", "kine/etcdapi", "datastore", "datastore/directory"},
	"internal/atomicfile":           {},
	"internal/clusterinfo":          {}, // what nodes, commands and the server read in one ConfigMap
	"internal/procnet":              {},
	"internal/ownership":            {}, // plumbing of commands and the server, without dependencies
	"kine":                          {"kine/etcdapi", "kine/inprocess", "datastore", "internal/socket"},
	"kine/external":                 {"internal/fence", "kine", "kine/etcdapi", "kine/external/liststream", "kine/inprocess"}, // the checks and chunks of RangeStream
	"kine/external/externaltest":    {"datastore", "kine/etcdapi", "kine/external/liststream"},
	"kine/external/liststream":      {},
	"kine/inprocess":                {"datastore", "kine/etcdapi"},
	"kine/etcdapi":                  {"datastore"},
	"datastore":                     {"datastore/backup", "datastore/directory", "datastore/sqlitefile"},
	"datastore/admin": { // closes what it replaces in order, as the engine does
		"datastore",
		"datastore/backup",
		"datastore/directory",
		"datastore/kineimport",
		"datastore/sqlitefile",
		"internal/atomicfile",
	},
	"datastore/backup":     {"datastore/directory", "datastore/sqlitefile", "internal/atomicfile"},
	"datastore/directory":  {"internal/atomicfile"},
	"datastore/enginetest": {"datastore", "datastore/directory"}, // tests only
	"datastore/kineimport": {"datastore", "datastore/directory", "datastore/sqlitefile", "internal/atomicfile"},
	"datastore/sqlitefile": {"datastore/directory", "internal/atomicfile"},
	"durability":           {"certs"}, // the names of the administrator's files; all else it sees from outside
	"snapshot": {
		"control",
		"datastore",
		"datastore/backup",
		"datastore/kineimport",
		"datastore/sqlitefile",
		"internal/atomicfile",
	}, // a running server alone can read its database
	"migrate": {
		"datastore",
		"datastore/directory",
		"datastore/kineimport", // what is no data
		"datastore/sqlitefile",
		"internal/atomicfile",
		"kine/external",
		"server/storage", // how an etcd is reached
	},
	"internal/socket": {},
	"node":            {"internal/atomicfile", "internal/clusterinfo", "server/tunnels"}, // this machine as a node: a client of the cluster, without the server, of which it only knows how keys are offered
	"preflight": {
		"certs",
		"datastore",
		"datastore/directory",
		"datastore/kineimport",
		"datastore/sqlitefile",
		"internal/memory",
		"internal/procnet",
	},
	"scripts/clients":    {},                    // requests through a load balancer
	"scripts/deviations": {"server/deviations"}, // it writes the table into docs
	"scripts/imports":    {},
	"scripts/markdown":   {},
	"scripts/plug":       {"durability"},
	"scripts/recipes":    {},
	"scripts/sbom":       {},
	"scripts/upgrade":    {"server/deviations", "server/deviations/mirrors"}, // it shows how what they name has changed
	"scripts/vulncheck":  {},
	"scripts/witness":    {}, // a client of servers; it imports none of our packages
	"servertest":         {"server", "internal/logbridge", "servertest/process"},
	"servertest/process": {"control"},
	"control":            {},

	"durability/soak":         {"durability/soak/load", "durability/soak/watches"},
	"durability/soak/load":    {"durability", "durability/soak/setup"},
	"durability/soak/setup":   {},
	"durability/soak/watches": {"certs", "durability", "durability/soak/setup"}, // client-go needs the administrator's files

	"scripts":       {}, // a test of what the scripts say about themselves
	"scripts/chart": {}, // it reads the records of bench, which is another module

	"scripts/konnectivity": {}, // a stand-in for a kubelet; it imports none of our packages
}

// homes says which of our packages may import what starts with a prefix.
var homes = []struct {
	prefix string
	home   []string
	reason string
}{
	{"k8s.io/kubernetes/cmd/kubeadm/app/apis/bootstraptoken/", []string{"command/token"}, "it links little of Kubernetes, and one command needs it"},
	{"k8s.io/kubernetes/cmd/kubeadm/app/util/pubkeypin", []string{"command/token", "node"}, "it links little of Kubernetes, and both check the hash of a CA"},
	{"k8s.io/kubernetes/", []string{"server", "server/apiserver", "server/controllers", "server/scheduler", "bootstrap", "bootstrap/kubeadm", "envtest/kubeapiserver", "server/apiserver/replacements"}, "a test binary that links Kubernetes takes 20 s: keep those packages few"},
	{"k8s.io/apiserver/", []string{"server", "server/apiserver", "server/controllers", "bootstrap", "envtest/kubeapiserver", "server/apiserver/openapi", "server/apiserver/replacements", "simulate/metricsapi"}, "it comes with most of Kubernetes"},
	{"k8s.io/kubectl/pkg/util/i18n", []string{"command/locale"}, "it has to be initialised first"},
	{"k8s.io/kubectl/", []string{"command/kubectl"}, "kubectl is a command, not a part of the server"},
	{"github.com/k3s-io/kine/pkg/endpoint", nil, "it links every driver, an etcd server and minio"},
	{"github.com/k3s-io/kine/pkg/app", nil, "it links every driver, an etcd server and minio"},
	{"github.com/k3s-io/kine/pkg/drivers/sqlite", nil, "with cgo on it picks mattn's binding: Karve has no cgo"},
	{"github.com/k3s-io/kine/pkg/drivers/t4", nil, "it links pebble and minio"},
	{"github.com/k3s-io/kine/", []string{"kine/external", "kine/external/externaltest", "kine/external/liststream"}, "a new version of kine has one place to be looked at"},
	{"github.com/jackc/pgx/", []string{"kine/external"}, "a database is asked once before kine's driver is"},
	{"github.com/go-sql-driver/mysql", []string{"kine/external"}, "a database is asked once before kine's driver is"},
	{"github.com/nats-io/", []string{"kine/external"}, "a database is asked once before kine's driver is"},
	{"modernc.org/", []string{"datastore/sqlitefile"}, "one room of the datastore knows SQLite"},
	{"golang.org/x/crypto/ssh", []string{"server/tunnels"}, "one room knows SSH"},
	{"filippo.io/age", []string{"server/membership"}, "one room knows how the cluster's keys are encrypted"},
	{"github.com/urfave/cli", []string{"command", "command/clustertoken", "command/datadir", "command/kubectl", "command/options", "command/output", "command/token"}, "only the commands parse a command line"},
	{"C", nil, "there is no cgo in Karve"},
}

// banned may not be linked into the binary by anybody.
var banned = map[string]string{
	"github.com/mattn/go-sqlite3":     "it needs cgo",
	"go.etcd.io/etcd/server/v3/embed": "Karve is no etcd server (go.mod replaces it, see kine/external/DESIGN.md)",
	"go.etcd.io/raft/v3":              "Karve is no etcd server",
	"github.com/cockroachdb/pebble":   "kine's t4 driver is not used",
	"github.com/minio/minio-go/v7":    "kine's t4 driver is not used",
}

// standIns are our directories that take the place of a banned package.
var standIns = map[string]string{"go.etcd.io/etcd/server/v3/embed": "kine/external/etcdserver/embed"}

type pkg struct {
	ImportPath string
	Dir        string
	Imports    []string
	Standard   bool
}

// isStandIn tells whether p is a stand-in and not the package itself.
func (p pkg) isStandIn() bool {
	dir, ok := standIns[p.ImportPath]
	return ok && strings.HasSuffix(filepath.ToSlash(p.Dir), "/"+dir)
}

func main() {
	packages, err := list("-deps", "./...")
	if err != nil {
		fmt.Fprintln(os.Stderr, "imports:", err)
		os.Exit(1)
	}
	wrong := check(packages)
	for _, w := range wrong {
		fmt.Println(w)
	}
	if len(wrong) > 0 {
		os.Exit(1)
	}
	fmt.Println("imports: every arrow points the right way")
}

func check(packages []pkg) []string {
	var wrong []string
	for _, p := range packages {
		if reason, ok := banned[p.ImportPath]; ok && !p.isStandIn() {
			wrong = append(wrong, fmt.Sprintf("%s is linked in: %s", p.ImportPath, reason))
		}
		name, ours := relative(p.ImportPath)
		if !ours {
			continue
		}
		allowed, known := own[name]
		if !known {
			wrong = append(wrong, fmt.Sprintf("%s is not in the table of scripts/imports: say what it may import", p.ImportPath))
			continue
		}
		for _, imported := range p.Imports {
			if to, ok := relative(imported); ok {
				if !slices.Contains(allowed, to) {
					wrong = append(wrong, fmt.Sprintf("%s imports %s: the arrow points the other way", p.ImportPath, imported))
				}
				continue
			}
			for _, rule := range homes { // the first that fits
				if imported == rule.prefix || strings.HasPrefix(imported, rule.prefix) && rule.prefix != "C" {
					if !slices.Contains(rule.home, name) {
						wrong = append(wrong, fmt.Sprintf("%s imports %s: %s", p.ImportPath, imported, rule.reason))
					}
					break
				}
			}
		}
	}
	return wrong
}

// relative is the path below the module, and whether it is ours at all.
func relative(path string) (string, bool) {
	if path == module {
		return "", true
	}
	return strings.CutPrefix(path, module+"/")
}

func list(args ...string) ([]pkg, error) {
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,Imports,Standard"}, args...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		all = append(all, p)
	}
}
