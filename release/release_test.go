// Package release has only tests, of what the scripts here promise.
package release

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Only the commit with the tag is signed, whatever version the environment names.
func TestReleaseIsSignedAtItsTag(t *testing.T) {
	const release = "v1.37.2+karve.3"
	for name, c := range map[string]struct {
		tag, environment string
		args             []string
		sums             string // the version of nodes/join/kubelet.sha256, if it is another
		want             string
	}{
		"no tag":                      {args: []string{"--key", "key"}, want: "release: only a release is signed"},
		"the tag of another release":  {tag: "v1.37.2+karve.2", args: []string{"--key", "key"}, want: "release: only a release is signed"},
		"no tag, but KARVE_VERSION":   {environment: release, args: []string{"--key", "key"}, want: "release: only a release is signed"},
		"no key":                      {environment: release, want: "builds " + release + ".dev-"},
		"the tag":                     {tag: release, args: []string{"--key", "key"}, want: "builds " + release + "\n"},
		"kubelets of another version": {tag: release, args: []string{"--key", "key"}, sums: "v1.37.1", want: "kubelet.sha256 does not have the kubelets of v1.37.2"},
		"the tag, another version":    {tag: release, environment: release + ".alpine", args: []string{"--key", "key"}, want: "builds " + release + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, text := range map[string]string{
				"internal/version/version.go": "package version\n\nconst Kubernetes = \"v1.37.2\"\n\nconst Release = \"3\"\n",
				"scripts/build":               "#!/bin/sh\necho builds $KARVE_VERSION\nexit 9\n",
				"bin/minisign":                "#!/bin/sh\n",
				"nodes/join/kubelet.sha256":   strings.Repeat("00  "+cmp.Or(c.sums, "v1.37.2")+"/bin/linux/amd64/kubelet\n", 4),
				"key":                         "",
				".gitignore":                  "/out/\n",
			} {
				path := filepath.Join(dir, file)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o700)); err != nil {
					t.Fatal(err)
				}
			}
			for _, script := range []string{"release/release", "scripts/version"} {
				text, err := os.ReadFile(filepath.Join("..", script))
				if err == nil {
					err = errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(script)), 0o700), os.WriteFile(filepath.Join(dir, script), text, 0o700))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			run := func(name string, args ...string) (string, error) {
				cmd := exec.CommandContext(t.Context(), name, args...)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "KARVE_VERSION="+c.environment, "GIT_CONFIG_GLOBAL=/dev/null")
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			commands := []string{"init -q", "add .", "-c user.name=A -c user.email=a@example.com commit -q -m Begin"}
			if c.tag != "" {
				commands = append(commands, "tag "+c.tag)
			}
			for _, args := range commands {
				if out, err := run("git", strings.Fields(args)...); err != nil {
					t.Fatalf("git %s: %v\n%s", args, err, out)
				}
			}
			got, err := run("release/release", append(c.args, "out", "linux/amd64")...)
			if err == nil || !strings.Contains(got, c.want) || !strings.Contains(c.want, "builds") && strings.Contains(got, "builds") {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

// A tag of an action can be moved to other code.
func TestWorkflowsPinActionsByCommit(t *testing.T) {
	workflows, err := filepath.Glob("../.github/workflows/*.yml")
	if err != nil || len(workflows) == 0 {
		t.Fatalf("no workflows, %v", err)
	}
	pinned := regexp.MustCompile(`@[0-9a-f]{40} # v[0-9.]+$`)
	for _, path := range append(workflows, "../action.yml") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, use := range regexp.MustCompile(`(?m)^[ -]*uses: .*$`).FindAllString(string(text), -1) {
			if !pinned.MatchString(use) {
				t.Errorf("%s: %s: want the commit, with its tag as a comment", path, strings.TrimSpace(use))
			}
		}
	}
}
