package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"
)

// What is built, by its name in the module proxy. go.mod says which version.
const (
	suitePackage  = "k8s.io/kubernetes/test/e2e"
	runnerPackage = "github.com/onsi/ginkgo/v2/ginkgo"
)

// A suite is upstream's tests, the runner that runs them in parallel, and the server that
// they test.
type suite struct {
	e2e    string
	ginkgo string
	karve  string

	output io.Writer // what the runner prints goes here too, unless it is nil
}

// buildSuite builds what is missing into dir. The first time, upstream's tests compile for
// minutes.
func buildSuite(ctx context.Context, dir, module, version string, stderr io.Writer) (*suite, error) {
	s := &suite{
		e2e:    filepath.Join(dir, "e2e.test"),
		ginkgo: filepath.Join(dir, "ginkgo"),
		karve:  filepath.Join(dir, "karve"),
	}
	steps := []struct {
		output string
		args   []string
	}{
		{s.karve, []string{filepath.Join(module, "..", "scripts", "build"), s.karve}},
		{s.ginkgo, []string{"go", "build", "-trimpath", "-o", s.ginkgo, runnerPackage}},
		{s.e2e, []string{"go", "test", "-c", "-vet=off", "-trimpath", "-ldflags", "-s -w" + versionFlags(version), "-o", s.e2e, suitePackage}},
	}
	for _, step := range steps {
		fmt.Fprintf(stderr, "build %s\n", filepath.Base(step.output))
		began := time.Now()
		cmd := child(ctx, step.args...)
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stdout, cmd.Stderr = stderr, stderr
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("build %s: %w", filepath.Base(step.output), err)
		}
		if took := time.Since(began); took > 10*time.Second {
			fmt.Fprintf(stderr, "built %s in %.0f s\n", filepath.Base(step.output), took.Seconds())
		}
	}
	return s, nil
}

// versionFlags are the linker's flags for the version that Kubernetes' programs print. Some tests ask for
// its first two numbers.
func versionFlags(version string) string {
	const variable = " -X k8s.io/component-base/version."
	numbers := strings.Split(strings.TrimPrefix(version, "v"), ".")
	return variable + "gitVersion=" + version + variable + "gitMajor=" + numbers[0] + variable + "gitMinor=" + numbers[1]
}

// child makes cmd end with this program. cmd is asked to end before it is killed.
func child(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	return cmd
}

// A result is the result of one test.
type result struct {
	Name    string  `json:"name"`
	State   string  `json:"state"` // as ginkgo calls it: passed, skipped, failed, timedout, …
	Seconds float64 `json:"seconds"`
	Message string  `json:"message,omitempty"`
}

// kubernetes returns the version in this module's go.mod, as vX.Y.Z, and the directory of
// its source.
func kubernetes(ctx context.Context, module string) (version, dir string, err error) {
	cmd := child(ctx, "go", "list", "-m", "-f", "{{.Version}} {{.Dir}}", "k8s.io/kubernetes")
	cmd.Dir = module
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", "", fmt.Errorf("find Kubernetes in the module cache: %w", err)
	}
	version, dir, _ = strings.Cut(strings.TrimSpace(string(out)), " ")
	return version, dir, nil
}

// conformanceTests returns the names of upstream's Conformance tests, which upstream keeps
// in a file. source is the directory of Kubernetes' source.
func conformanceTests(source string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(source, "test/conformance/testdata/conformance.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read upstream's list of Conformance tests: %w", err)
	}
	var tests []struct{ Codename string }
	if err := yaml.Unmarshal(data, &tests); err != nil {
		return nil, fmt.Errorf("read upstream's list of Conformance tests: %w", err)
	}
	var names []string
	for _, t := range tests {
		names = append(names, t.Codename)
	}
	if len(names) == 0 {
		return nil, errors.New("upstream's list of Conformance tests is empty")
	}
	slices.Sort(names)
	return names, nil
}

// run runs these tests on a new control plane.
func (s *suite) run(ctx context.Context, tests []string, nodes int, o options, stderr io.Writer) ([]result, error) {
	dir, err := os.MkdirTemp("", "karve-conformance-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if o.servers > 1 {
		return s.runOnSeveral(ctx, dir, tests, nodes, o, stderr)
	}
	server, err := s.start(ctx, dir, nodes, nil)
	if err != nil {
		return nil, err
	}
	defer server.stop()
	fmt.Fprintf(stderr, "run %d tests on %d nodes\n", len(tests), nodes)
	results, err := s.runTests(ctx, nil, dir, server.kubeconfig, tests, o, nobodyWaits(nodes)...)
	if err == nil && slices.ContainsFunc(results, result.failed) {
		server.keepLog(filepath.Join(filepath.Dir(s.e2e), "conformance-karve.log"), stderr)
	}
	return results, err
}

// nobodyWaits are the arguments of e2e.test without waiting for nodes and for Pods of a kube-system.
func nobodyWaits(nodes int) []string {
	return []string{"--allowed-not-ready-nodes=-1", "--num-nodes=" + strconv.Itoa(nodes)}
}

// runTests runs these tests on the cluster of kubeconfig. Before the command comes prefix, and after
// it come the arguments of e2e.test. dir is for the suite's files.
func (s *suite) runTests(ctx context.Context, prefix []string, dir, kubeconfig string, tests []string, o options, args ...string) ([]result, error) {
	kubectl := filepath.Join(dir, "kubectl")
	if err := os.Symlink(s.karve, kubectl); err != nil {
		return nil, err
	}
	var escaped []string
	for _, name := range tests {
		escaped = append(escaped, regexp.QuoteMeta(name))
	}
	file := "report.json"
	command := slices.Concat(prefix, []string{s.ginkgo, "--procs=" + strconv.Itoa(o.procs), "--no-color", "--silence-skips", "--timeout=" + o.timeout.String(),
		"--output-dir=" + dir, "--json-report=" + file, "--label-filter=Conformance", "--focus=^.*(" + strings.Join(escaped, "|") + ")", s.e2e, "--",
		// Without a cloud.
		"--provider=skeleton", "--kubectl-path=" + kubectl, "--e2e-output-dir=" + dir, "--dump-logs-on-failure=false"}, args)
	cmd := child(ctx, command...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout = &out
	if s.output != nil {
		cmd.Stdout = io.MultiWriter(&out, s.output)
	}
	cmd.Stderr = cmd.Stdout
	// A test that waits may not notice that it should end. All of them end with the runner.
	cmd.SysProcAttr.Setpgid = true
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	failed := cmd.Run()
	if cmd.Process != nil {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	results, err := readReport(filepath.Join(dir, file))
	if err != nil {
		return nil, fmt.Errorf("%w: %v: %s", err, failed, tail(out.Bytes()))
	}
	// The report also has the tests that were not selected, as skipped.
	results = slices.DeleteFunc(results, func(r result) bool { return !slices.Contains(tests, r.Name) })
	if err := whole(results, tests); err != nil {
		return nil, err
	}
	if failed != nil && !slices.ContainsFunc(results, result.failed) {
		return nil, fmt.Errorf("the suite failed, but no test of it: %w: %s", failed, tail(out.Bytes()))
	}
	return results, nil
}

// whole checks that there is one result for each test.
func whole(results []result, tests []string) error {
	seen := map[string]int{}
	for _, r := range results {
		seen[r.Name]++
	}
	for _, name := range tests {
		if seen[name] != 1 {
			return fmt.Errorf("the suite's report has %d results of %s, not one", seen[name], name)
		}
	}
	return nil
}

func (r result) failed() bool { return r.State != "passed" && r.State != "skipped" }

// readReport reads ginkgo's report of all processes.
func readReport(file string) ([]result, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the suite's report: %w", err)
	}
	var reports []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeText            string
			LeafNodeType            string
			State                   string
			RunTime                 time.Duration
			Failure                 struct{ Message string }
		}
	}
	if err := json.Unmarshal(data, &reports); err != nil {
		return nil, fmt.Errorf("read the suite's report: %w", err)
	}
	var results []result
	for _, r := range reports {
		for _, spec := range r.SpecReports {
			name := strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")
			if spec.LeafNodeType != "It" || !strings.Contains(name, "[Conformance]") {
				continue
			}
			results = append(results, result{name, spec.State, spec.RunTime.Seconds(), spec.Failure.Message})
		}
	}
	return results, nil
}

// tail returns the end of a program's output, for an error.
func tail(out []byte) string {
	const most = 4000
	if len(out) > most {
		out = append([]byte("…"), out[len(out)-most:]...)
	}
	return strings.TrimSpace(string(out))
}
