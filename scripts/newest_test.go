package scripts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The weekly report is one line, whatever happens, and says by its exit status whether to look.
func TestNewestKubernetes(t *testing.T) {
	script, err := os.ReadFile("newest-kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	const (
		reading   = "k8s.io/kubernetes@v1.37.10: reading https://proxy.example/k8s.io/kubernetes/@v/v1.37.10.info: "
		forbidden = reading + `403 Forbidden\n\tserver response: not available`
	)
	const released = "v0.36.9 v0.37.1 v0.37.2 v0.37.10 v0.38.0-alpha.1 v0.38.0"
	for name, c := range map[string]struct {
		args     string
		present  string
		released string // by the proxy's list
		refused  string // a release that cannot be downloaded
		error    string // what the go command reports then
		upgrade  string // what the upgrade does
		test     string // what go test does
		want     string // the line, with a * for any text
		fails    bool
	}{
		"nothing newer":            {present: "v1.37.10", released: released, want: "current: v1.37.10 is the newest of 1.37"},
		"a newer one":              {args: "-n", present: "v1.37.1", released: released, want: "found: v1.37.1 -> v1.37.10"},
		"refused, but an older":    {args: "-n", present: "v1.37.1", released: released, refused: "v1.37.10", error: forbidden, want: "found: v1.37.1 -> v1.37.2 (refused by the proxy: v1.37.10)"},
		"all refused":              {present: "v1.37.2", released: released, refused: "v1.37.10", error: forbidden, want: "current: v1.37.2 is the newest of 1.37 (refused by the proxy: v1.37.10)"},
		"not there":                {present: "v1.37.2", released: released, refused: "v1.37.10", error: reading + "404 Not Found", want: "current: v1.37.2 is the newest of 1.37 (refused by the proxy: v1.37.10)"},
		"gone":                     {present: "v1.37.2", released: released, refused: "v1.37.10", error: reading + "410 Gone", want: "current: v1.37.2 is the newest of 1.37 (refused by the proxy: v1.37.10)"},
		"a proxy that is broken":   {present: "v1.37.2", released: released, refused: "v1.37.10", error: reading + "500 Internal Server Error", want: "failed: v1.37.10 cannot be downloaded: " + reading + "500 Internal Server Error", fails: true},
		"no proxy":                 {present: "v1.37.2", released: released, refused: "v1.37.10", error: "dial tcp 127.0.0.1:1: connect: connection refused", want: "failed: v1.37.10 cannot be downloaded: dial tcp 127.0.0.1:1: connect: connection refused", fails: true},
		"a full disk":              {present: "v1.37.2", released: released, refused: "v1.37.10", want: "failed: v1.37.10 cannot be downloaded: no space left", fails: true},
		"a pre-release":            {args: "-n", present: "v1.38.0-rc.1", released: released, want: "found: v1.38.0-rc.1 -> v1.38.0"},
		"no version":               {present: "1.37", released: released, want: `failed: internal/version/version.go has no version like v1.37.2: "1.37"`, fails: true},
		"no list":                  {present: "v1.37.2", want: "failed: the module proxy does not list the releases: no network", fails: true},
		"passed":                   {present: "v1.37.1", released: released, upgrade: "exit 0", test: "exit 0", want: "passed: v1.37.1 -> v1.37.10 in * s"},
		"the upgrade fails":        {present: "v1.37.1", released: released, upgrade: "echo upgrade-kubernetes: build failed after 3 s: exit status 1; echo more; exit 1", want: "failed: v1.37.1 -> v1.37.10 after * s: build failed after 3 s: exit status 1", fails: true},
		"the upgrade cannot begin": {present: "v1.37.1", released: released, upgrade: "echo go: no such tool; exit 1", want: "failed: v1.37.1 -> v1.37.10 after * s: go: no such tool", fails: true},
		"a test fails afterwards":  {present: "v1.37.1", released: released, upgrade: "exit 0", test: "echo '--- FAIL: TestX (0.1s)'; echo FAIL; exit 1", want: "failed: v1.37.1 -> v1.37.10 after * s: go test ./...: --- FAIL: TestX (0.1s)", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, text := range map[string]string{
				"scripts/newest-kubernetes":   string(script),
				"scripts/upgrade-kubernetes":  "#!/bin/sh\n[ \"$1\" = v1.37.10 ] || exit 9\n" + c.upgrade + "\n",
				"internal/version/version.go": "package version\n\nconst Kubernetes = \"" + c.present + "\"\n",
				".gitignore":                  "/build/\n/bin/\n",
				"bin/go": `#!/bin/sh
case "$1 $2" in
"list -m") [ -n "` + c.released + `" ] && printf '%s\n' ` + c.released + ` && exit; echo no network >&2; exit 1 ;;
"mod download") case $4 in k8s.io/kubernetes@` + c.refused + `)
	[ -z '` + c.error + `' ] || printf '{\n\t"Path": "k8s.io/kubernetes",\n\t"Error": "%s"\n}\n' '` + c.error + `'
	echo no space left >&2
	exit 1 ;;
*) exit ;; esac ;;
"test ./...") ` + c.test + ` ;;
esac
exit 9
`,
			} {
				path := filepath.Join(dir, file)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o700)); err != nil {
					t.Fatal(err)
				}
			}
			run := func(name string, args ...string) (string, error) {
				cmd := exec.CommandContext(t.Context(), name, args...)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "GIT_CONFIG_GLOBAL=/dev/null")
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			for _, args := range []string{"init -q", "add .", "-c user.name=A -c user.email=a@example.com commit -q -m Begin"} {
				if out, err := run("git", strings.Fields(args)...); err != nil {
					t.Fatalf("git %s: %v\n%s", args, err, out)
				}
			}
			got, err := run("scripts/newest-kubernetes", strings.Fields(c.args)...)
			begin, end, _ := strings.Cut("newest-kubernetes: "+c.want+"\n", "*")
			if !strings.HasPrefix(got, begin) || !strings.HasSuffix(got, end) || strings.Count(got, "\n") != 1 || (err != nil) != c.fails {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
			if out, err := run("git", "status", "--porcelain"); err != nil || out != "" {
				t.Errorf("the work tree has changed: %q, %v", out, err)
			}
		})
	}
}
