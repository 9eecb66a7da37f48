package scripts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A client that cannot be built is a failure, and the program of an earlier run is not tried in its place.
func TestSkewNoticesFailedBuilds(t *testing.T) {
	script, err := os.ReadFile("skew")
	if err != nil {
		t.Fatal(err)
	}
	module, err := os.ReadFile("testdata/skew/module.sh")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		kubectl, client string // the commands that build them
		want            []string
		fails           bool
	}{
		"built":      {kubectl: "cp ../../../../bin/true program", client: "cp ../../../../bin/true program", want: []string{"| kubectl | passed |", "| client-go | passed |", "| client-go with CBOR | passed |"}},
		"no kubectl": {kubectl: "exit 1", client: "cp ../../../../bin/true program", want: []string{"| kubectl | FAILED to build |", "| client-go | passed |"}, fails: true},
		"no client":  {kubectl: "cp ../../../../bin/true program", client: "exit 1", want: []string{"| kubectl | passed |", "| client-go | FAILED to build |"}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, text := range map[string]string{
				"scripts/skew":                         string(script),
				"scripts/testdata/skew/module.sh":      string(module),
				"scripts/testdata/skew/kubectl.go":     "package main\n",
				"scripts/testdata/skew/client_test.go": "package main\n",
				"scripts/testdata/skew/kubectl-suite":  "#!/bin/sh\nexec \"$KUBECTL\"\n",
				"build/skew/v0.36.6/kubectl/program":   "#!/bin/sh\necho the program of an earlier run\n",
				"build/skew/v0.36.6/client-go/program": "#!/bin/sh\necho the program of an earlier run\n",
				"bin/true":                             "#!/bin/sh\n",
				"bin/karve":                            "#!/bin/sh\n[ \"$1\" != version ] || exec echo kubernetes v1.37.2\nuntil [ \"$1\" = -- ]; do shift; done\nshift\nexec \"$@\"\n",
				"bin/go":                               "#!/bin/sh\ncase \"$1\" in\nbuild) " + c.kubectl + " ;;\ntest) " + c.client + " ;;\nversion) echo go version go1.99 ;;\nesac\n",
			} {
				path := filepath.Join(dir, file)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o700)); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), "scripts/skew", "--karve", "bin/karve", "v0.36.6")
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			if (err != nil) != c.fails {
				t.Errorf("got %v\n%s", err, out)
			}
			for _, want := range c.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("the output does not have %q:\n%s", want, out)
				}
			}
			for part, build := range map[string]string{"kubectl": c.kubectl, "client-go": c.client} {
				text, err := os.ReadFile(filepath.Join(dir, "build/skew/v0.36.6", part, "program"))
				if build == "exit 1" && !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the %s of an earlier run is still there: %q, %v", part, text, err)
				}
			}
		})
	}
}
