// Command recipes runs the recipes of docs/ci.md as they stand there, with the
// release of a directory in place of the one on the web, and prints how long each
// took. Then it runs the action of action.yml, and a Go test on a machine that has only Go. With "page", it runs the recipes of
// docs/recipes.md, and compares what they print with what stands there. scripts/recipes-test calls it in
// namespaces of its own.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"
)

// releaseURL is what every recipe has once; a web server's stands in for it.
const releaseURL = "https://github.com/karve-k8s/karve/releases/latest/download"

// nobody is the user who follows recipes.
const nobody = 65534

// answer is what kubectl says of a cluster without nodes.
const answer = "No resources found"

// standIn is the project that is tested: `go test` that asks the cluster.
const standIn = `#!/bin/sh
[ "$*" = "test ./..." ] || { echo "the recipe calls go $*" >&2; exit 2; }
exec kubectl get nodes
`

// A recipe is a code block of the document.
type recipe struct {
	title string
	root  bool // the system that it is for runs its jobs as root
	steps []step
}

type step struct {
	env    map[string]string
	script string
}

func main() {
	var err error
	switch n := len(os.Args); {
	case n >= 4 && os.Args[1] == "page":
		err = followPage(os.Args[2], os.Args[3], os.Args[4:], os.Stdout)
	case n == 3 || n == 4:
		err = run(os.Args[1], os.Args[2], strings.Join(os.Args[3:], ""), os.Stdout)
	default:
		fmt.Fprintln(os.Stderr, "usage: recipes DOCUMENT RELEASE-DIRECTORY [PUBLIC-KEY] | recipes page DOCUMENT PROGRAM-DIRECTORY [RECIPE...]")
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "recipes:", err)
		os.Exit(1)
	}
}

func run(document, release, key string, stdout io.Writer) error {
	text, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	recipes, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", document, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go http.Serve(l, http.FileServer(http.Dir(release)))
	url := "http://" + l.Addr().String()

	const rounds = 3
	fmt.Fprintln(stdout, "seconds from nothing installed until kubectl get nodes was answered (of CPU, but for what runs on in the background):")
	for _, r := range recipes {
		var took []string
		for range rounds {
			d, cpu, err := r.run(url)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", document, r.title, err)
			}
			took = append(took, fmt.Sprintf("%5.2f (%.2f)", d.Seconds(), cpu.Seconds()))
		}
		fmt.Fprintf(stdout, "%-48s  %s\n", r.title, strings.Join(took, "  "))
	}
	if err := runAction("action.yml", release, url, stdout); err != nil {
		return err
	}
	return goTest(url, key, stdout)
}

// parse finds the recipes. The heading above a recipe is its name.
func parse(text string) ([]recipe, error) {
	var recipes []recipe
	var language, title string
	var block []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && language == "":
			language, block = fence, nil
		case isFence:
			if strings.Contains(strings.Join(block, "\n"), actionUse) {
				language = "" // runAction runs the action
				continue
			}
			r, err := recipeOf(language, strings.Join(block, "\n"))
			if err != nil {
				return nil, fmt.Errorf("%s %w", title, err)
			}
			r.title = title
			recipes = append(recipes, r)
			language = ""
		case language != "":
			block = append(block, line)
		case strings.HasPrefix(line, "#"):
			title = strings.TrimLeft(line, "# ")
		}
	}
	if language != "" {
		return nil, errors.New("a code block has no end")
	}
	if len(recipes) == 0 {
		return nil, errors.New("there is no recipe")
	}
	return recipes, nil
}

func recipeOf(language, block string) (recipe, error) {
	if n := strings.Count(block, releaseURL); n != 1 {
		return recipe{}, fmt.Errorf("has %s %d times, want it once", releaseURL, n)
	}
	if language == "sh" {
		return recipe{steps: []step{{script: block}}}, nil
	}
	if language != "yaml" {
		return recipe{}, fmt.Errorf("is in %q, which nothing here understands", language)
	}
	var github struct {
		Jobs map[string]struct {
			RunsOn string `yaml:"runs-on"`
			Steps  []struct {
				Name, Uses, Run string
				Env             map[string]string
			}
		}
	}
	if err := strict(block, &github); err == nil {
		var r recipe
		for _, job := range github.Jobs {
			for _, s := range job.Steps {
				if (s.Uses == "") == (s.Run == "") {
					return recipe{}, errors.New("has a step that neither uses nor runs something, or both")
				}
				if s.Run != "" {
					r.steps = append(r.steps, step{s.Env, s.Run})
				}
			}
		}
		return r, nil
	}
	var gitlab map[string]struct {
		Image     string
		Variables map[string]string
		Script    []string
	}
	if err := strict(block, &gitlab); err != nil {
		return recipe{}, fmt.Errorf("is neither a workflow of GitHub's nor jobs of GitLab's: %w", err)
	}
	r := recipe{root: true}
	for _, job := range gitlab {
		r.steps = append(r.steps, step{job.Variables, strings.Join(job.Script, "\n")})
	}
	return r, nil
}

func strict(block string, into any) error {
	d := yaml.NewDecoder(strings.NewReader(block))
	d.KnownFields(true)
	return d.Decode(into)
}

// run follows a recipe on what looks like a new machine, and returns when kubectl
// was answered, and of all the CPU time it took.
func (r recipe) run(url string) (took, cpu time.Duration, err error) {
	home, err := os.MkdirTemp("", "recipe-")
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(home)
	work := filepath.Join(home, "work")
	tools := filepath.Join(home, "tools")
	environment, path := filepath.Join(home, "environment"), filepath.Join(home, "path")
	for _, dir := range []string{work, tools} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return 0, 0, err
		}
	}
	for name, content := range map[string]string{filepath.Join(tools, "go"): standIn, environment: "", path: ""} {
		if err := os.WriteFile(name, []byte(content), 0o755); err != nil {
			return 0, 0, err
		}
	}
	if !r.root {
		for _, name := range []string{home, work, environment, path} {
			if err := os.Chown(name, nobody, nobody); err != nil {
				return 0, 0, err
			}
		}
	}
	env := []string{"HOME=" + home, "PATH=" + tools + ":/usr/local/bin:/usr/bin:/bin", "GITHUB_ENV=" + environment, "GITHUB_PATH=" + path}
	heard := &ear{want: answer}
	var groups []int
	defer func() {
		for _, group := range groups { // a job's end is the end of what it has started
			if still := end(group); still != nil && err == nil {
				err = still
			}
		}
	}()
	began := time.Now()
	for _, s := range r.steps {
		// As both systems call it; a plain shell is asked for the same.
		cmd := exec.Command("bash", "-e", "-c", strings.ReplaceAll(s.script, releaseURL, url))
		cmd.Dir = work
		cmd.Env = slices.Clone(env)
		for name, value := range s.env {
			cmd.Env = append(cmd.Env, name+"="+strings.ReplaceAll(value, releaseURL, url))
		}
		cmd.Stdout, cmd.Stderr = heard, heard
		cmd.WaitDelay = time.Second // what runs on in the background may keep our pipes open
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if !r.root {
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		}
		if err := cmd.Start(); err != nil {
			return 0, 0, err
		}
		groups = append(groups, cmd.Process.Pid)
		err := cmd.Wait()
		cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		if err != nil {
			return 0, 0, fmt.Errorf("%w: %s", err, heard.all.String())
		}
		if env, err = next(env, environment, path); err != nil {
			return 0, 0, err
		}
	}
	if heard.at.IsZero() {
		return 0, 0, fmt.Errorf("kubectl did not say %q: %s", answer, heard.all.String())
	}
	return heard.at.Sub(began), cpu, nil
}

// next is the environment of the step after those that wrote to these files.
func next(env []string, environment, path string) ([]string, error) {
	vars, err := os.ReadFile(environment)
	if err != nil {
		return nil, err
	}
	env = append(env, strings.Fields(string(vars))...)
	dirs, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer dirs.Close()
	for lines := bufio.NewScanner(dirs); lines.Scan(); {
		i := slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, "PATH=") })
		env[i] = "PATH=" + lines.Text() + ":" + strings.TrimPrefix(env[i], "PATH=")
	}
	return env, nil
}

// end asks a process group to end, and waits until nothing of it is there.
func end(group int) error {
	const patience = time.Minute
	signal, asked := syscall.SIGTERM, time.Now()
	for syscall.Kill(-group, signal) == nil {
		switch waited := time.Since(asked); {
		case waited > 2*patience:
			return fmt.Errorf("what was started is still there after %v", waited)
		case waited > patience:
			signal = syscall.SIGKILL
		default:
			signal = 0
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// An ear keeps what it hears, and when it first heard what it wants.
type ear struct {
	want string
	all  bytes.Buffer
	at   time.Time
}

func (e *ear) Write(p []byte) (int, error) {
	e.all.Write(p)
	if e.at.IsZero() && strings.Contains(e.all.String(), e.want) {
		e.at = time.Now()
	}
	return len(p), nil
}
