package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

const (
	control = "github.com/karve-k8s/karve/control"
	process = "github.com/karve-k8s/karve/servertest/process"
)

// goModules are the modules that a Go test requires, with their directories.
var goModules = map[string]string{control: "control", process: "servertest/process"}

// goModulesVersion is the version that the test requires.
const goModulesVersion = "v0.0.1"

// userTest is the test of somebody who has read docs/testing.md.
const userTest = `package operator

import (
	"testing"

	"github.com/karve-k8s/karve/servertest/process"
)

func TestNamespace(t *testing.T) {
	cluster := process.Start(t)
	t.Log("namespace " + cluster.Namespace(t))
}
`

// goTest runs a Go test on what looks like a machine with Go and nothing else: it has a PATH
// without karve and git, and an empty cache of modules and programs. The release comes from url.
// With key, that is the key of the release manager.
func goTest(url, key string, stdout io.Writer) error {
	home, err := os.MkdirTemp("", "recipe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(home)
	proxy := filepath.Join(home, "proxy")
	for path, dir := range goModules {
		if err := publish(proxy, path, dir); err != nil {
			return err
		}
	}
	known, err := exec.Command("go", "env", "GOMODCACHE", "GOCACHE", "GOROOT").Output()
	if err != nil {
		return err
	}
	dirs := strings.Split(strings.TrimSpace(string(known)), "\n")
	work := filepath.Join(home, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(work, "operator_test.go"), []byte(userTest), 0o644); err != nil {
		return err
	}
	environment := []string{"HOME=" + home, "PATH=" + filepath.Join(dirs[2], "bin"), "KARVE_DOWNLOAD_URL=" + url, "CGO_ENABLED=0",
		"GOPROXY=file://" + proxy + ",file://" + filepath.Join(dirs[0], "cache/download"), "GOSUMDB=off", "GOTOOLCHAIN=local",
		"GOCACHE=" + dirs[1], "GOFLAGS=-trimpath -modcacherw"} // removed with home
	run := func(args ...string) (string, error) {
		cmd := exec.Command(filepath.Join(dirs[2], "bin", "go"), args...)
		cmd.Dir, cmd.Env = work, environment
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return string(out), err
	}
	for _, args := range [][]string{
		{"mod", "init", "example.com/operator"},
		{"get", process + "@" + goModulesVersion, control + "@" + goModulesVersion},
		{"mod", "tidy", "-e"}, // the cache may lack a module that only tests of dependencies import
	} {
		if _, err := run(args...); err != nil {
			return err
		}
	}
	test := []string{"test", "-count", "1", "-v"}
	if key != "" {
		test = append(test, "-ldflags", "-X "+process+".releaseKey="+key)
	}
	for _, state := range []string{"with a download", "with the program in the cache"} {
		began := time.Now()
		out, err := run(test...)
		if err != nil {
			return err
		}
		if !strings.Contains(out, "namespace testnamespace-") {
			return fmt.Errorf("the Go test had no namespace: %s", out)
		}
		if downloaded := strings.Contains(out, "downloading karve "); downloaded != (state == "with a download") {
			return fmt.Errorf("the Go test %s: it downloaded something: %v: %s", state, downloaded, out)
		}
		fmt.Fprintf(stdout, "%-48s  %5.2f\n", "a Go test "+state, time.Since(began).Seconds())
	}
	return nil
}

// publish puts the module in dir on a module proxy, which is a directory.
func publish(proxy, path, dir string) error {
	at := filepath.Join(proxy, path, "@v", goModulesVersion)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(at+".mod", mod, 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(at+".info", fmt.Appendf(nil, "{%q:%q}", "Version", goModulesVersion), 0o644); err != nil {
		return err
	}
	file, err := os.Create(at + ".zip")
	if err != nil {
		return err
	}
	defer file.Close()
	if err := zip.CreateFromDir(file, module.Version{Path: path, Version: goModulesVersion}, dir); err != nil {
		return err
	}
	return file.Close()
}
