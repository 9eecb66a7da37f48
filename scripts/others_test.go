package scripts

import (
	"archive/zip"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// The table of docs/compatibility.md is what scripts/others has recorded, of all that it tries now.
func TestCompatibilityShowsTheRecord(t *testing.T) {
	recorded, err := os.ReadFile("../docs/figures/compatibility.txt")
	if err != nil {
		t.Fatal(err)
	}
	document, err := os.ReadFile("../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	listed, err := exec.Command("./others", "--list").Output()
	if err != nil {
		t.Fatal(err)
	}

	remarks := map[string]string{}
	for line := range strings.Lines(string(recorded)) {
		if key, value, ok := strings.Cut(strings.TrimPrefix(line, "# "), ": "); ok && strings.HasPrefix(line, "# ") {
			remarks[key] = strings.TrimSpace(value)
		}
	}
	table := []string{"Recorded on " + remarks["date"] + " by `" + remarks["command"] + "`, with " + remarks["karve"] + ".", "",
		"| software | version | what was tried | result |", "|---|---|---|---|",
	}
	var list []string
	for line := range strings.Lines(string(recorded)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(line, "\t")
		if len(cells) != 5 {
			t.Fatalf("%q has %d cells, want 5", line, len(cells))
		}
		name, software, tried, result := cells[0], cells[1], cells[3], cells[4]
		table = append(table, "| "+strings.Join(cells[1:], " | ")+" |")
		if tried == "–" {
			tried = result // the reason why not
		}
		list = append(list, name+" "+software+": "+tried)
	}
	want := "<!-- The table is written by scripts/others --record -->\n\n" + strings.Join(table, "\n") + "\n\n<!-- end of the table -->\n"
	if !strings.Contains(string(document), want) {
		t.Errorf("docs/compatibility.md does not show the record, docs/figures/compatibility.txt; want\n%s", want)
	}
	var now []string
	for line := range strings.Lines(string(listed)) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		now = append(now, name+" "+strings.TrimSpace(rest))
	}
	if got, want := strings.Join(list, "\n"), strings.Join(now, "\n"); got != want {
		t.Errorf("the record is of other software than scripts/others tries: run scripts/others --record. The record has\n%s\nthe script\n%s", got, want)
	}
}

// moduleProxy serves modules v1.0.0 by their name, as go.mod and main.go. Everything of example.com/refused is
// forbidden, and example.com/down is an error of the server.
func moduleProxy(t *testing.T, modules map[string][2]string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		module, file, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/@v/")
		files, ok := modules[module]
		switch {
		case module == "example.com/refused":
			http.Error(w, "not for you", http.StatusForbidden)
		case module == "example.com/down":
			http.Error(w, "later", http.StatusInternalServerError)
		case !ok:
			http.NotFound(w, r)
		case path.Ext(file) == ".info":
			w.Write([]byte(`{"Version": "v1.0.0"}`))
		case path.Ext(file) == ".mod":
			w.Write([]byte(files[0]))
		default:
			archive := zip.NewWriter(w)
			for name, text := range map[string]string{"go.mod": files[0], "go.sum": "", "main.go": files[1]} {
				part, err := archive.Create(module + "@v1.0.0/" + name)
				if err == nil {
					_, err = part.Write([]byte(text))
				}
				if err != nil {
					t.Error(err)
				}
			}
			if err := archive.Close(); err != nil {
				t.Error(err)
			}
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// A build that fails is a failure, except where the module proxy refuses a part. Only a clean tree without a
// failure is recorded. Go is the real one, as the script reads its messages.
func TestOthersTellsFailuresFromRefusals(t *testing.T) {
	const empty = "package main\n\nfunc main() {}\n"
	proxy := moduleProxy(t, map[string][2]string{
		"example.com/good":   {"module example.com/good\n", empty},
		"example.com/broken": {"module example.com/broken\n", "package main\n\nfunc main() { nothing() }\n"},
		"example.com/needy":  {"module example.com/needy\n\nrequire example.com/refused v1.0.0\n", "package main\n\nimport _ \"example.com/refused\"\n\nfunc main() {}\n"},
	})
	script, err := os.ReadFile("others")
	if err != nil {
		t.Fatal(err)
	}
	dir, cache := t.TempDir(), t.TempDir()
	recipe := func(modules string) string {
		return "software=Software\ntried=everything\nmodules=(" + modules + ")\npackages=(program=.)\n" +
			"try() {\n\t\"$bin/program\"\n}\n"
	}
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	run := func(name string, args ...string) (string, int) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOPROXY="+proxy, "GOSUMDB=off", "GOTOOLCHAIN=local", "GOMODCACHE="+cache, "GIT_CONFIG_GLOBAL=/dev/null")
		out, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	t.Cleanup(func() { // Go makes its files read-only
		clean := exec.CommandContext(context.Background(), "go", "clean", "-modcache")
		clean.Env = append(os.Environ(), "GOMODCACHE="+cache)
		if out, err := clean.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	write("scripts/others", string(script))
	write("karve", `#!/bin/sh
case $1 in
envtest-assets) mkdir -p "$4" ;;
--version) echo karve v0 ;;
run) while [ "$1" != -- ]; do shift; done && shift && exec "$@" ;;
esac
`)
	write(".gitignore", "/build/\n")
	write("docs/figures/compatibility.txt", "nothing\n")
	write("docs/compatibility.md", "<!-- The table is written by scripts/others --record -->\n<!-- end of the table -->\n")
	for name, modules := range map[string]string{
		"10-good": "example.com/refused@v1.0.0 example.com/good@v1.0.0", "20-refused": "example.com/refused@v1.0.0", "30-needy": "example.com/needy@v1.0.0",
		"40-broken": "example.com/broken@v1.0.0", "50-down": "example.com/down@v1.0.0",
	} {
		write("scripts/others.d/"+name+".sh", recipe(modules))
	}
	commit := func() {
		t.Helper()
		for _, args := range []string{"init -q", "add .", "-c user.name=A -c user.email=a@example.com commit -q -m Change"} {
			if out, code := run("git", strings.Fields(args)...); code != 0 {
				t.Fatalf("git %s: %s", args, out)
			}
		}
	}
	commit()

	for name, want := range map[string]struct {
		texts []string
		code  int
	}{
		"good":    {[]string{"building Software v1.0.0\n", "trying Software v1.0.0\n", "\tworks\t"}, 0},
		"refused": {[]string{"not tried: the proxy refuses a part of it: example.com/refused@v1.0.0: 403 Forbidden\t"}, 0},
		"needy":   {[]string{"building Software v1.0.0\n", "not tried: the proxy refuses a part of it: example.com/refused@v1.0.0: 403 Forbidden\t"}, 0},
		"broken":  {[]string{"\tfails\tcannot be built: ./main.go:3:15: undefined: nothing; log: "}, 1},
		"down":    {[]string{"\tfails\tcannot be built: ", ": 500 Internal Server Error"}, 1},
	} {
		out, code := run("scripts/others", "--karve", "karve", name)
		for _, text := range want.texts {
			if !strings.Contains(out, text) || code != want.code {
				t.Errorf("%s: got exit code %d and %q, want %d and %q", name, code, out, want.code, text)
			}
		}
	}

	record := func() string {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(dir, "docs/figures/compatibility.txt"))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	if out, code := run("scripts/others", "--karve", "karve", "--record"); code != 1 || !strings.Contains(out, "nothing is recorded, because a program fails") || record() != "nothing\n" {
		t.Errorf("with failures: got exit code %d, the record %q and %q", code, record(), out)
	}
	write("scripts/others.d/40-broken.sh", recipe("example.com/good@v1.0.0"))
	write("scripts/others.d/50-down.sh", recipe("example.com/good@v1.0.0"))
	if out, code := run("scripts/others", "--karve", "karve", "--record"); code != 2 || !strings.Contains(out, "--record wants a tree without changes") || record() != "nothing\n" {
		t.Errorf("with changes: got exit code %d, the record %q and %q", code, record(), out)
	}
	commit()
	if out, code := run("scripts/others", "--karve", "karve", "--record"); code != 0 || strings.Count(record(), "\tworks\n") != 3 || strings.Count(record(), "\tnot tried: ") != 2 {
		t.Errorf("got exit code %d, the record %q and %q", code, record(), out)
	}
}
