package simulate

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Each reason, condition and Event of a kubelet is simulated, or DESIGN.md names it as a difference. An upgrade of Kubernetes shows new ones.
func TestKubeletReasonsAreSimulatedOrNamed(t *testing.T) {
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes", "k8s.io/api")
	dirs, err := list.Output()
	if err != nil {
		t.Fatalf("%v: %v", list, err)
	}
	kubernetes, api, _ := strings.Cut(strings.TrimSpace(string(dirs)), "\n")
	design, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	said := words(t)
	kubelet := filepath.Join(kubernetes, "pkg/kubelet")
	found := 0
	for pattern, name := range map[string]*regexp.Regexp{
		filepath.Join(kubelet, "events/event.go"):                      nil,
		filepath.Join(kubelet, "images/types.go"):                      regexp.MustCompile("^Err"),
		filepath.Join(kubelet, "container/sync_result.go"):             regexp.MustCompile("^Err.*(Off|Container|Sandbox|Place)$"),
		filepath.Join(kubelet, "kuberuntime/kuberuntime_container.go"): regexp.MustCompile("^Err"),
		filepath.Join(api, "core/v1/types.go"):                         regexp.MustCompile(`^(ContainersReady|DisruptionTarget|AllContainersRestarting|Pod(Initialized|Ready|Scheduled|ReadyToStartContainers|Resize(Pending|InProgress)|Reason(Deferred|Infeasible))|Node(Ready|\w+Pressure|NetworkUnavailable|GracefulNodeShutdownInProgress))$`),
	} {
		all := constants(t, pattern, name)
		for constant, value := range all { // some values have several names
			said[value] = said[value] || said[constant]
		}
		for constant, value := range all {
			found++
			if !said[value] && !strings.Contains(string(design), "`"+value+"`") {
				t.Errorf("%s: %s (%s) is neither simulated nor named in DESIGN.md", filepath.Base(pattern), value, constant)
			}
		}
	}
	if found < 80 {
		t.Errorf("upstream's files have %d names, want at least 80: have they moved?", found)
	}
}

// constants returns the string constants of a file, and the errors.New of its variables, whose names match.
func constants(t *testing.T, path string, name *regexp.Regexp) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, value := range spec.Values {
			if call, ok := value.(*ast.CallExpr); ok && len(call.Args) == 1 {
				value = call.Args[0]
			}
			if lit, ok := value.(*ast.BasicLit); ok && lit.Kind == token.STRING && (name == nil || name.MatchString(spec.Names[i].Name)) {
				all[spec.Names[i].Name], _ = strconv.Unquote(lit.Value)
			}
		}
		return true
	})
	return all
}

// words returns the strings in the files of the simulation, and the names after a dot.
func words(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	own, _ := filepath.Glob("*.go")
	volumes, _ := filepath.Glob("volumes/*.go")
	for _, path := range append(own, volumes...) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				value, _ := strconv.Unquote(n.Value)
				all[value] = true
			case *ast.SelectorExpr: // events.KillingContainer, corev1.NodeReady
				all[n.Sel.Name] = true
			}
			return true
		})
	}
	return all
}
