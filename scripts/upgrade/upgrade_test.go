package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fakeGo stands in for the go command: it knows a Kubernetes of which the proxy has v1.31.1 but
// not v1.31.2, writes its other calls to a log, and fails where the file "fails" says so.
const fakeGo = `#!/bin/sh
case "$1 $2" in
"mod edit") exec "$REAL_GO" "$@" ;;
"mod download")
	shift 3
	for module; do
		case $module in
		*@v1.31.2 | *@v0.31.2) echo '{"Path": "'${module%@*}'", "Version": "'${module#*@}'", "Error": "403 Forbidden"}' && exit 1 ;;
		k8s.io/sample*) echo '{"Path": "k8s.io/sample", "Error": "404 Not Found"}' && exit 1 ;;
		*) echo '{"Path": "'${module%@*}'", "Version": "'${module#*@}'", "Dir": "'$REPO'/upstream"}' ;;
		esac
	done
	exit
	;;
"list -mod=mod") cat "$REPO/newest" && exit ;;
esac
call="$(basename "$PWD"): go $*"
echo "$call" >>"$REPO/log"
! grep -qxF "$call" "$REPO/fails"
`

// repository is a small one of Karve's shape, in the current directory, with fakeGo.
func repository(t *testing.T) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "karve")
	for name, text := range map[string]string{
		".gitignore":                  "/build/\n/log\n/fails\n/bin/\n/newest\n/upstream/\n",
		"internal/version/version.go": "package version\n\nconst Kubernetes = \"v1.30.4\"\n\nconst Release = \"3\"\n",
		"servertest/process/fetch.go": "package process\n\nconst Version = \"v1.30.4+karve.3\"\n",
		"test/bench/binaries.go":      "package main\n\nconst kubernetesVersion = \"v1.30.4\"\n",
		"CONTRIBUTING.md":             "Kubernetes v1.30.4\n",
		"docs/recipes.md":             "go install k8s.io/sample-apiserver@v0.30.4\n",
		"README.md":                   "Karve has v1.30.4.\n",
		"server/flags_test.go":        "package server\n\nfunc TestFlagsAreUpstreams(t *testing.T) {}\nfunc TestOther(t *testing.T) {}\n",
		"go.mod": `module example.com/karve

go 1.26

require (
	example.com/control v0.0.0
	k8s.io/api v0.30.4
	k8s.io/kubectl v0.0.0
	k8s.io/kubernetes v1.30.4 // the heart
	k8s.io/utils v0.30.4-other
)

// Named here.
replace (
	k8s.io/api => k8s.io/api v0.30.4
	k8s.io/kubectl => k8s.io/kubectl v0.30.4
	k8s.io/sample => k8s.io/sample v0.30.4
)

replace example.com/control => ./control
`,
		"control/go.mod":  "module example.com/control\n\ngo 1.26\n\nrequire k8s.io/api v0.30.4\n",
		"upstream/go.mod": "module k8s.io/kubernetes\n\nrequire (\n\tk8s.io/api v0.0.0\n\tk8s.io/kubectl v0.0.0\n\tk8s.io/streaming v0.0.0\n\texample.com/other v1.0.0\n)\n",
		"scripts/build":   "#!/bin/sh\necho \"build $*\" >>log\n! grep -qxF \"build $*\" fails\n",
		"bin/go":          fakeGo,
		"fails":           "",
		"newest":          "",
	} {
		write(t, filepath.Join(dir, name), text)
	}
	real, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	t.Setenv("REAL_GO", real)
	t.Setenv("REPO", dir)
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	t.Setenv("PATH", filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "-q", "-m", "Begin"}} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o700)); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// move runs an upgrade with a report of its own, because the fixture has no packages.
func move(t *testing.T, version string) (output string, err error) {
	t.Helper()
	var out strings.Builder
	u, err := newUpgrade(t.Context(), &out, version)
	if err != nil {
		return "", err
	}
	report := slices.IndexFunc(u.steps, func(s step) bool { return s.name == "report" })
	u.steps[report].run = func(u *upgrade) error { return os.WriteFile(u.state.reportFile(), nil, 0o600) }
	err = u.run()
	return out.String(), err
}

// calls are the lines that fakeGo and scripts/build logged, which it removes.
func calls(t *testing.T) []string {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(read(t, "log")), "\n")
	if err := os.Remove("log"); err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestUpgrade(t *testing.T) {
	repository(t)
	const test = "karve: go test -count=1 -timeout=30m -run ^(TestFlagsAreUpstreams)$ ./server"
	write(t, "fails", "build build/upgrade/karve\n")
	if out, err := move(t, "v1.31.1"); err == nil || !strings.Contains(err.Error(), "build failed") || !strings.Contains(out, "not done") {
		t.Fatalf("a failed build: got %v\n%s", err, out)
	}
	want := []string{"control: go mod tidy", "karve: go mod tidy", "build build/upgrade/karve"}
	if got := calls(t); !slices.Equal(got, want) {
		t.Errorf("before the failed build: got %q, want %q", got, want)
	}

	// The next run does not repeat what succeeded, and checks do not stop one another.
	write(t, "fails", "control: go vet ./...\n"+test+"\nkarve: go mod tidy -diff\n")
	out, err := move(t, "v1.31.1")
	if err == nil || !strings.Contains(err.Error(), "vet control failed") || !strings.Contains(err.Error(), "test server failed") {
		t.Fatalf("failed checks: got %v\n%s", err, out)
	}
	want = []string{"build build/upgrade/karve", "control: go vet ./...", "karve: go vet ./...", test, "control: go mod tidy -diff", "karve: go mod tidy -diff"}
	if got := calls(t); !slices.Equal(got, want) {
		t.Errorf("with failing checks: got %q, want %q", got, want)
	}
	if !strings.Contains(out, "README.md:1:Karve has v1.30.4.") || strings.Contains(out, "test/bench/binaries.go:3") {
		t.Errorf("what still mentions the old version: got\n%s", out)
	}
	if _, err := move(t, "v1.31.0"); err == nil || !strings.Contains(err.Error(), "v1.30.4 to v1.31.1 has begun") {
		t.Errorf("another upgrade meanwhile: got %v", err)
	}

	write(t, "fails", "")
	if out, err = move(t, "v1.31.1"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want = []string{"control: go vet ./...", test, "karve: go mod tidy -diff"}
	if got := calls(t); !slices.Equal(got, want) {
		t.Errorf("the last run: got %q, want %q", got, want)
	}
	for _, line := range []string{"tidy control", "0, earlier", "all"} {
		if !strings.Contains(out, line) {
			t.Errorf("the table does not have %q:\n%s", line, out)
		}
	}
	if _, err := move(t, "v1.31.1"); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("the same upgrade again: got %v", err)
	}

	if got, want := read(t, "control/go.mod"), "module example.com/control\n\ngo 1.26\n\nrequire k8s.io/api v0.31.1\n"; got != want {
		t.Errorf("control/go.mod: got\n%s", got)
	}
	goMod := read(t, "go.mod")
	for _, want := range []string{
		"\tk8s.io/api v0.31.1\n", "\tk8s.io/kubectl v0.0.0\n", "\tk8s.io/kubernetes v1.31.1 // the heart\n", "\tk8s.io/utils v0.30.4-other\n", "// Named here.\n",
		"\tk8s.io/api => k8s.io/api v0.31.1\n", "\tk8s.io/kubectl => k8s.io/kubectl v0.31.1\n", "k8s.io/streaming => k8s.io/streaming v0.31.1\n", "example.com/control => ./control\n",
	} {
		if !strings.Contains(goMod, want) {
			t.Errorf("go.mod does not have %q:\n%s", want, goMod)
		}
	}
	if strings.Contains(goMod, "sample") {
		t.Errorf("go.mod replaces a module that has no such version:\n%s", goMod)
	}
	if got, want := read(t, versionFile), "package version\n\nconst Kubernetes = \"v1.31.1\"\n\nconst Release = \"1\"\n"; got != want {
		t.Errorf("%s: got %q", versionFile, got)
	}
	if got, want := read(t, "servertest/process/fetch.go"), "package process\n\nconst Version = \"v1.31.1+karve.1\"\n"; got != want {
		t.Errorf("the release that Go tests download: got %q", got)
	}
	if got := read(t, "CONTRIBUTING.md") + read(t, "test/bench/binaries.go"); strings.Count(got, "v1.31.1") != 2 {
		t.Errorf("the other constants: got %q", got)
	}
	if got, want := read(t, "docs/recipes.md"), "go install k8s.io/sample-apiserver@v0.31.1\n"; got != want {
		t.Errorf("the module that a recipe installs: got %q", got)
	}
}

// What cannot begin leaves the work tree as it was.
func TestUpgradeRefuses(t *testing.T) {
	repository(t)
	if out, err := move(t, "v1.31.2"); err == nil || !strings.Contains(err.Error(), "k8s.io/kubernetes@v1.31.2 cannot be had: 403 Forbidden") {
		t.Errorf("a version that the proxy refuses: got %v\n%s", err, out)
	}
	if err := os.RemoveAll(stateDir); err != nil {
		t.Fatal(err)
	}
	if _, err := move(t, "1.31.1"); err == nil || !strings.Contains(err.Error(), "no version of Kubernetes") {
		t.Errorf("what is no version: got %v", err)
	}
	if _, err := move(t, "v1.30.3"); err == nil || !strings.Contains(err.Error(), "v1.30.3 is older than Kubernetes v1.30.4") {
		t.Errorf("an older version: got %v", err)
	}
	write(t, "README.md", "changed\n")
	if _, err := move(t, "v1.31.1"); err == nil || !strings.Contains(err.Error(), "M README.md") {
		t.Errorf("a work tree with changes: got %v", err)
	}
	if got := read(t, "go.mod"); !strings.Contains(got, "v1.30.4") {
		t.Errorf("go.mod was changed:\n%s", got)
	}
	if _, err := os.Stat("log"); err == nil {
		t.Errorf("the go command was called: %q", calls(t))
	}
}

func TestPinsNeedAReason(t *testing.T) {
	repository(t)
	write(t, "control/go.mod", "module example.com/control\n")
	write(t, "newest", `{"Path": "example.com/a", "Version": "v1.0.0", "Update": {"Version": "v1.1.0"}} {"Path": "example.com/b", "Version": "v1.0.0"}`)
	u := &upgrade{ctx: t.Context(), out: new(strings.Builder)}
	for requirement, fails := range map[string]bool{
		"require example.com/a v1.0.0":                                      true,
		"require example.com/a v1.0.0 // v1.1.0 needs cgo":                  false,
		"// v1.1.0 needs cgo.\nrequire example.com/a v1.0.0":                false,
		"require (\n\t// Why.\n\texample.com/a v1.0.0\n)":                   false,
		"require (\n\t// Why.\n\n\texample.com/a v1.0.0\n)":                 true,
		"require (\n\texample.com/b v1.0.0 // b\n\texample.com/a v1.0.0\n)": true,
	} {
		write(t, "go.mod", "module example.com/karve\n\n"+requirement+"\n")
		if err := u.older(); err != nil {
			t.Errorf("%q: the step of an upgrade fails: %v", requirement, err)
		}
		err := u.pins()
		if (err != nil) != fails {
			t.Errorf("%q: got %v", requirement, err)
		}
		if err != nil && !strings.Contains(err.Error(), "go.mod: example.com/a v1.0.0 is older than v1.1.0") {
			t.Errorf("%q: got %v", requirement, err)
		}
	}
}

// A requirement or replacement with the reason "Kubernetes' own version" has the version that upstream requires.
func TestOwnVersionsAreUpstreams(t *testing.T) {
	repository(t)
	write(t, "control/go.mod", "module example.com/control\n")
	u := &upgrade{ctx: t.Context(), out: new(strings.Builder)}
	for goMod, want := range map[string]string{
		"require example.com/other v1.0.0 // Kubernetes' own version: it is tested with that":                                               "",
		"require example.com/other v1.0.1 // Kubernetes' own version: it is tested with that":                                               "go.mod: example.com/other v1.0.1 is not Kubernetes' own version, which is v1.0.0",
		"// Kubernetes' own version.\nrequire example.com/other v1.0.1":                                                                     "which is v1.0.0",
		"require example.com/new v1.0.0 // Kubernetes' own version":                                                                         "go.mod: example.com/new v1.0.0 is not Kubernetes' own version: upstream does not require it",
		"require example.com/other v1.0.1 // another reason":                                                                                "",
		"require example.com/other v1.0.1\n// Kubernetes' own version.\nreplace example.com/other => example.com/other v1.0.0":              "",
		"require example.com/other v1.0.0\n// Kubernetes' own version.\nreplace example.com/other => example.com/other v1.0.1":              "go.mod: example.com/other v1.0.1 is not",
		"require example.com/other v1.0.0\nreplace (\n\texample.com/other v1.0.0 => example.com/other v1.0.1 // Kubernetes' own version\n)": "go.mod: example.com/other v1.0.1 is not",
	} {
		write(t, "go.mod", "module example.com/karve\n\n"+goMod+"\n")
		for name, run := range map[string]func() error{"the list": u.pins, "the step of an upgrade": u.older} {
			if err := run(); (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s of %q: got %v, want %q", name, goMod, err, want)
			}
		}
	}
}

// A replacement by another version of the module is listed as a requirement is.
func TestReplacementsNeedAReason(t *testing.T) {
	repository(t)
	write(t, "control/go.mod", "module example.com/control\n")
	write(t, "newest", `{"Path": "example.com/a", "Version": "v1.1.0", "Replace": {"Version": "v1.0.0"}}`)
	u := &upgrade{ctx: t.Context(), out: new(strings.Builder)}
	for replacement, fails := range map[string]bool{
		"replace example.com/a => example.com/a v1.0.0":                      true,
		"// v1.1.0 is large.\nreplace example.com/a => example.com/a v1.0.0": false,
		"replace k8s.io/api => k8s.io/api v0.30.4":                           false, // of staging: not asked for
		"replace example.com/a => ./control":                                 false, // a directory: neither
	} {
		write(t, "go.mod", "module example.com/karve\n\n"+replacement+"\n")
		if err := u.pins(); (err != nil) != fails || fails && !strings.Contains(err.Error(), "go.mod: example.com/a v1.0.0 is older than v1.1.0") {
			t.Errorf("%q: got %v", replacement, err)
		}
	}
}

// A file that repeats the version and was forgotten would stop the next upgrade.
func TestConstantsHaveTheVersion(t *testing.T) {
	t.Chdir("../..")
	version, err := currentVersion()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range constants {
		if !strings.Contains(read(t, file), version) {
			t.Errorf("%s does not have %s", file, version)
		}
	}
	staging, err := stagingVersion(version)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range stagingConstants {
		if !strings.Contains(read(t, file), staging) {
			t.Errorf("%s does not have %s", file, staging)
		}
	}
}
