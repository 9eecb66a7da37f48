// Command imports checks which way the arrows between packages point, and that
// each heavy dependency has one home. Run it as `go run ./scripts/imports`; it
// prints every arrow that should not be there, with the reason, and exits 1.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const module = "github.com/karve-k8s/karve"

// layers are the rooms at the root, from the bottom up. A package may import packages of its own room, and of
// rooms in a lower layer. A room that is missing here is an error: say where it belongs.
var layers = [][]string{
	{"control"},
	{"internal"},
	{"bootstrap", "certs", "datastore", "simulate"},
	{"kine", "nodes", "snapshot"},
	{"server"},
	{"envtest", "servertest"},
	{"command", "release", "scripts"},
	{""}, // main.go
}

// serverLayers are the rooms in server/, from the bottom up. Package server is above all of them. A room may import
// those of a lower layer.
var serverLayers = [][]string{
	{"certificates", "deviations", "filewatch", "flags", "lifecycle", "loopback", "marker", "page", "ports", "queues"},
	{"election", "insecure", "sharedinformers"},
	{"manifests", "storage"},
	{"membership", "snapshots"},
	{"apiserver", "controllers", "scheduler"},
	{""}, // server
}

// testRooms are for tests: no part of the program imports them.
var testRooms = []string{"servertest", "release", "scripts"}

// homes says which of our packages may import what starts with a prefix.
var homes = []struct {
	prefix string
	home   []string
	reason string
}{
	{"k8s.io/kubernetes/cmd/kubeadm/app/apis/bootstraptoken/", []string{"command/keys"}, "it links little of Kubernetes, and one command needs it"},
	{"k8s.io/kubernetes/cmd/kubeadm/app/util/pubkeypin", []string{"command/keys", "nodes/join", "nodes/join/ask"}, "it links little of Kubernetes, and they check the hash of a CA"},
	{"k8s.io/kubernetes/cmd/kubeadm/", []string{"nodes/addons", "bootstrap/kubeadm"}, "two packages know what kubeadm does"},
	{"k8s.io/kubernetes/pkg/util/taints", []string{"nodes/join", "simulate/groups"}, "it links little of Kubernetes, and two rooms read taints"},
	{"k8s.io/kubernetes/", []string{"server", "server/apiserver", "server/controllers", "server/controllers/replacements", "server/scheduler", "bootstrap", "bootstrap/kubeadm", "envtest/kubeapiserver", "server/apiserver/replacements", "server/apiserver/stored", "simulate", "simulate/groups"}, "a test binary that links Kubernetes takes 20 s: keep those packages few"},
	{"k8s.io/apiserver/", []string{"server", "server/apiserver", "server/controllers", "server/controllers/replacements", "bootstrap", "envtest/kubeapiserver", "server/apiserver/audit", "server/apiserver/egress", "server/apiserver/nodeissuer", "server/apiserver/openapi", "server/apiserver/replacements", "server/apiserver/stored", "simulate", "simulate/metricsapi"}, "it comes with most of Kubernetes"},
	{"k8s.io/kubectl/pkg/util/i18n", []string{"internal/locale"}, "it has to be initialised first"},
	{"k8s.io/kubectl/", []string{"command/kubectl"}, "kubectl is a command, not a part of the server"},
	{"github.com/k3s-io/kine/pkg/endpoint", nil, "it links every driver, an etcd server and minio"},
	{"github.com/k3s-io/kine/pkg/app", nil, "it links every driver, an etcd server and minio"},
	{"github.com/k3s-io/kine/pkg/drivers/sqlite", nil, "with cgo on it picks mattn's binding: Karve has no cgo"},
	{"github.com/k3s-io/kine/pkg/drivers/t4", nil, "it links pebble and minio"},
	{"github.com/k3s-io/kine/", []string{"kine/external"}, "a new version of kine has one place to be looked at"},
	{"github.com/jackc/pgx/", []string{"kine/external"}, "databases have one place"},
	{"github.com/go-sql-driver/mysql", []string{"kine/external"}, "databases have one place"},
	{"modernc.org/", []string{"datastore/sqlitefile"}, "one room of the datastore knows SQLite"},
	{"golang.org/x/crypto/ssh", []string{"nodes/tunnels"}, "one room knows SSH"},
	{"filippo.io/age", []string{"server/membership", "command/backup"}, "one room knows how the cluster's keys are encrypted, and one how backups are sealed"},
	{"github.com/urfave/cli", []string{"command", "command/backup", "command/keys", "command/kubectl", "command/options", "command/output", "command/status"}, "only the commands parse a command line"},
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

// standIn is our directory that takes the place of a banned package.
const standIn = "/kine/external/etcdserver/embed"

type pkg struct {
	ImportPath string
	Dir        string
	Imports    []string
}

func main() {
	packages, err := list()
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
		if reason, ok := banned[p.ImportPath]; ok && !strings.HasSuffix(filepath.ToSlash(p.Dir), standIn) {
			wrong = append(wrong, fmt.Sprintf("%s is linked in: %s", p.ImportPath, reason))
		}
		name, ours := relative(p.ImportPath)
		if !ours {
			continue
		}
		room, _, _ := strings.Cut(name, "/")
		layer := layerOf(room)
		if layer < 0 {
			wrong = append(wrong, fmt.Sprintf("%s: its room is not in the table of scripts/imports", p.ImportPath))
			continue
		}
		for _, imported := range p.Imports {
			if other, ok := relative(imported); ok {
				to, _, _ := strings.Cut(other, "/")
				switch {
				case to == room && room == "server" && climbs(name, other):
					wrong = append(wrong, fmt.Sprintf("%s imports %s: the arrow climbs in server/", p.ImportPath, imported))
				case to == room:
				case layerOf(to) >= layer:
					wrong = append(wrong, fmt.Sprintf("%s imports %s: the arrow climbs", p.ImportPath, imported))
				case slices.Contains(testRooms, to) && !slices.Contains(testRooms, room):
					wrong = append(wrong, fmt.Sprintf("%s imports %s, which is for tests", p.ImportPath, imported))
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

// layerOf returns the index of a room's layer, or -1.
func layerOf(room string) int { return indexOf(layers, room) }

func indexOf(layers [][]string, room string) int {
	return slices.IndexFunc(layers, func(rooms []string) bool { return slices.Contains(rooms, room) })
}

// climbs tells whether a package in server/ may not import another one there.
func climbs(from, to string) bool {
	room := func(name string) string {
		name, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimPrefix(name, "server"), "/"), "/")
		return name
	}
	from, to = room(from), room(to)
	below := indexOf(serverLayers, to)
	return from != to && (below < 0 || below >= indexOf(serverLayers, from))
}

// relative is the path below the module, and whether it is ours at all.
func relative(path string) (string, bool) {
	if path == module {
		return "", true
	}
	return strings.CutPrefix(path, module+"/")
}

// list returns the packages of the program, and those that they import.
func list() (all []pkg, err error) {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}}\t{{.Dir}}\t{{join .Imports \" \"}}", "./...")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		all = append(all, pkg{fields[0], fields[1], strings.Fields(fields[2])})
	}
	return all, err
}
