package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The commit with the tag is the release, and every other state is a build before it.
func TestVersion(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	script, err := os.ReadFile("version")
	if err != nil {
		t.Fatal(err)
	}
	write("scripts/version", string(script), 0o700)
	write("internal/version/version.go", "package version\n\nconst Kubernetes = \"v1.37.2\"\n\nconst Release = \"3\"\n", 0o600)
	run := func(environment, command string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), command, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "KARVE_VERSION="+environment, "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir),
			"GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@example.com")
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	git := func(args ...string) string {
		t.Helper()
		out, err := run("", "git", args...)
		if err != nil {
			t.Fatalf("git %v: %v", args, err)
		}
		return out
	}
	want := func(state, environment, want string, args ...string) {
		t.Helper()
		got, err := run(environment, "scripts/version", args...)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v, want %q", state, got, err, want)
		}
	}
	const release = "v1.37.2+karve.3"
	want("no repository", "", release+".dev")
	git("init", "-q")
	git("add", ".")
	git("commit", "-q", "-m", "Begin")
	commit := git("rev-parse", "--short", "HEAD")
	want("a commit", "", release+".dev-"+commit)
	git("tag", "v1.37.2+karve.2")
	want("the tag of another release", "", release+".dev-"+commit)
	git("tag", release)
	want("the tag", "", release)
	write("internal/version/more.go", "package version\n", 0o600)
	want("a file that git does not know", "", release)
	git("add", ".")
	want("a change", "", release+".dev-"+commit+"-dirty")
	want("what it will be", "", release, "--release")
	want("KARVE_VERSION", release, release)
	want("KARVE_VERSION of a build", release+".alpine", release+".alpine")
	want("another KARVE_VERSION", release+"1", "")
	want("another KARVE_VERSION", "v1.37.3", "")
}
