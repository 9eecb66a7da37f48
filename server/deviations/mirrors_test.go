package deviations_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mirror is a function of upstream's whose body Karve repeats in parts, or relies on beyond
// its documentation.
type mirror struct {
	ours     string // file of Karve's
	upstream string // package of upstream's
	function string // name, or Type.name of a method; also a variable
	hash     string // of the source, without comments
}

const (
	apiserverApp  = "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllerApp = "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	schedulerApp  = "k8s.io/kubernetes/cmd/kube-scheduler/app"
	genericServer = "k8s.io/apiserver/pkg/server"
	registryStore = "k8s.io/apiserver/pkg/registry/generic/registry"
	aggregator    = "k8s.io/kube-aggregator/pkg/apiserver"
	namespaceLoop = "k8s.io/kubernetes/pkg/controller/namespace"
	goRestful     = "github.com/emicklei/go-restful/v3"
)

// mirrors are all of them. When an upgrade changes one, the test fails: compare upstream's new
// function with our file, change that if it has to follow, and then the hash.
var mirrors = []mirror{
	{"server/apiserver/options.go", apiserverApp, "NewAPIServerCommand", "5ae04353a39c"},
	{"server/apiserver/upstream.go", apiserverApp, "NewAPIServerCommand", "5ae04353a39c"},
	{"server/apiserver/run.go", apiserverApp, "Run", "ecd6f86999fa"},
	{"server/apiserver/chain.go", apiserverApp, "NewConfig", "f014c3486bca"},
	{"server/apiserver/chain.go", apiserverApp, "CreateServerChain", "c5631a7aac06"},
	{"server/apiserver/replacements/genericconfig.go", "k8s.io/kubernetes/pkg/controlplane/apiserver", "BuildGenericConfig", "b2f806ae2bcc"},
	{"server/apiserver/replacements/genericconfig.go", genericServer, "DefaultOpenAPIV3Config", "32eebed56f00"},
	{"server/apiserver/replacements/loopbackcertificate.go", genericServer + "/options", "SecureServingOptionsWithLoopback.ApplyTo", "f09bb41a038f"},
	{"server/apiserver/replacements/loopbackcertificate.go", genericServer + "/options", "SecureServingOptionsWithLoopback.ApplyToConfig", "28f7de82e82d"},
	{"server/apiserver/replacements/alignedclock.go", registryStore, "StorageWithCacher", "2f1f9249857f"},
	{"server/apiserver/replacements/earlyinformers.go", genericServer, "StorageReadinessHook.Hook", "5751e7d678b6"},
	{"server/apiserver/replacements/earlyinformers.go", genericServer, "GenericAPIServer.RunPreShutdownHooks", "12a830c85221"},
	{"server/apiserver/replacements/streams.go", genericServer, "preparedGenericAPIServer.RunWithContext", "27720df0fed7"},
	{"server/apiserver/replacements/storageclient.go", "k8s.io/apiserver/pkg/storage/storagebackend/factory", "newETCD3Client", "311b6bc191fb"},
	{"server/apiserver/replacements/storageclient.go", "k8s.io/apiserver/pkg/storage/etcd3", "NewETCDLatencyTracker", "31574770380c"},
	{"server/apiserver/replacements/tracing.go", "k8s.io/apiserver/pkg/endpoints/filters", "WithTracing", "15332163c25b"},
	{"server/apiserver/replacements/compression.go", "k8s.io/apiserver/pkg/endpoints/handlers/responsewriters", "negotiateContentEncoding", "ecfdb76e2257"},
	{"server/apiserver/replacements/clientcertificates.go", "k8s.io/apiserver/pkg/authentication/request/x509", "Authenticator.AuthenticateRequest", "5546107c28bf"},
	{"server/apiserver/replacements/clientcertificates.go", "k8s.io/apiserver/pkg/authentication/request/x509", "CommonNameUserConversion", "9235777a787c"},
	{"server/apiserver/replacements/clientcertificates.go", "k8s.io/kubernetes/pkg/kubeapiserver/authenticator", "Config.New", "89c04e806eeb"},
	{"server/apiserver/replacements/routes.go", goRestful, "CurlyRouter.SelectRoute", "9e646c804aa0"},
	{"server/apiserver/replacements/routes.go", goRestful, "CurlyRouter.selectRoutes", "807764d10b15"},
	{"server/apiserver/replacements/routes.go", goRestful, "CurlyRouter.matchesRouteByPathTokens", "5ecc76d01c7e"},
	{"server/apiserver/replacements/routes.go", goRestful, "CurlyRouter.detectWebService", "bc53ffee51c9"},
	{"server/apiserver/replacements/routes.go", goRestful, "RouterJSR311.detectRoute", "6f362d74cdf9"},
	{"server/apiserver/openapi/documents.go", genericServer + "/routes", "OpenAPI.InstallV2", "19026e6be7a8"},
	{"server/apiserver/openapi/documents.go", genericServer + "/routes", "OpenAPI.InstallV3", "7b536819cb09"},
	{"server/apiserver/openapi/aggregator.go", aggregator, "APIAggregator.PrepareRun", "09eba7e906bd"},
	{"server/controllers/controllers.go", controllerApp, "Run", "524e464d904e"},
	{"server/controllers/controllers.go", controllerApp, "NewControllerManagerCommand", "73f8ab311e9b"},
	{"server/controllers/token.go", controllerApp, "newServiceAccountTokenController", "b874432e50e0"},
	{"server/controllers/garbage.go", controllerApp, "newGarbageCollectorController", "783b9eced065"},
	{"server/controllers/garbage.go", "k8s.io/kubernetes/pkg/controller/garbagecollector", "GarbageCollector.Sync", "d951c4ccdfe1"},
	{"server/controllers/namespaces.go", controllerApp, "newModifiedNamespaceController", "33fe619b087d"},
	{"server/controllers/namespaces.go", namespaceLoop, "NewNamespaceController", "0e165c2de14e"},
	{"server/controllers/namespaces.go", namespaceLoop, "NamespaceController.worker", "63cd395ce0c2"},
	{"server/controllers/namespaces.go", namespaceLoop, "NamespaceController.syncNamespaceFromKey", "65eaf3462f2d"},
	{"server/scheduler/scheduler.go", schedulerApp, "Setup", "ad9e34380f1f"},
	{"server/scheduler/scheduler.go", schedulerApp, "Run", "c6ca54d1c77a"},
	{"server/queues/queues.go", "k8s.io/client-go/util/workqueue", "Typed.updateUnfinishedWorkLoop", "71f608828f4c"},
	{"bootstrap/policy.go", "k8s.io/kubernetes/pkg/registry/rbac/rest", "PolicyData.EnsureRBACPolicy", "9c1a751a3c5a"},
}

func TestMirrorsAreUpstreams(t *testing.T) {
	files := packageFiles(t)
	for _, m := range mirrors {
		if _, err := os.Stat(filepath.Join("..", "..", m.ours)); err != nil {
			t.Errorf("%s %s: its mirror has moved: %v", m.upstream, m.function, err)
		}
		file, source := find(t, files[m.upstream], m.function)
		if source == "" {
			t.Errorf("upstream changed, compare %s: %s has no %s any more", m.ours, m.upstream, m.function)
			continue
		}
		sum := sha256.Sum256([]byte(source))
		if got := hex.EncodeToString(sum[:6]); got != m.hash {
			t.Errorf("upstream changed, compare %s with %s of %s; then replace the hash %q by %q", m.ours, m.function, file, m.hash, got)
		}
	}
}

// packageFiles are the Go files of all packages that are mirrored.
func packageFiles(t *testing.T) map[string][]string {
	t.Helper()
	args := []string{"list", "-json=ImportPath,Dir,GoFiles"}
	for _, m := range mirrors {
		if !slices.Contains(args, m.upstream) {
			args = append(args, m.upstream)
		}
	}
	list := exec.CommandContext(t.Context(), "go", args...)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	files := map[string][]string{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Dir string
			GoFiles         []string
		}
		if err := decoder.Decode(&p); err == io.EOF {
			return files
		} else if err != nil {
			t.Fatal(err)
		}
		for _, name := range p.GoFiles {
			files[p.ImportPath] = append(files[p.ImportPath], filepath.Join(p.Dir, name))
		}
	}
}

// find returns the file in which a function or variable is declared, and its source, formatted
// and without comments.
func find(t *testing.T, files []string, name string) (file, source string) {
	t.Helper()
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(text, []byte(name[strings.LastIndexByte(name, '.')+1:])) {
			continue // most files need not be parsed
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range parsed.Decls {
			if !declares(declaration, name) {
				continue
			}
			var out strings.Builder
			if err := format.Node(&out, set, declaration); err != nil {
				t.Fatal(err)
			}
			return file, out.String()
		}
	}
	return "", ""
}

func declares(declaration ast.Decl, name string) bool {
	switch d := declaration.(type) {
	case *ast.FuncDecl:
		return functionName(d) == name
	case *ast.GenDecl:
		return slices.ContainsFunc(d.Specs, func(spec ast.Spec) bool {
			value, ok := spec.(*ast.ValueSpec)
			return ok && slices.ContainsFunc(value.Names, func(n *ast.Ident) bool { return n.Name == name })
		})
	}
	return false
}

// functionName is that of a function, or Type.name of a method.
func functionName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	receiver := f.Recv.List[0].Type
	for {
		switch r := receiver.(type) {
		case *ast.StarExpr:
			receiver = r.X
		case *ast.IndexExpr: // of a generic type
			receiver = r.X
		case *ast.Ident:
			return fmt.Sprintf("%s.%s", r.Name, f.Name.Name)
		default:
			return f.Name.Name
		}
	}
}
