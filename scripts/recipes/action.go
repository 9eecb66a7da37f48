package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"
)

// afterAction is what a later step of the job finds.
const afterAction = `set -e
karve kubectl get widgets small
karve kubectl rollout status deployment/web --timeout=5m
[ "$(karve kubectl get nodes --output name | wc -l)" = 2 ]
[ -s "$KUBECONFIG" ]
karve status | grep "^data directory *$KARVE_DATA_DIR\$"
`

// afterFailure is what a step with if: failure() finds.
const afterFailure = `set -e
karve kubectl get namespaces
[ -s "$(sed -n 's/^log=//p' "$GITHUB_OUTPUT")" ]
echo the log is there
`

// wrongInputs have the error that the job shows.
var wrongInputs = []struct{ input, value, want string }{
	{"version", "1.37", "version: 1.37: want a release such as v1.37.2+karve.1, or latest"},
	{"version", "v1.37.2+karve.1/../..", "want a release such as v1.37.2+karve.1, or latest"},
	{"version", "v0.0.1+karve.1", "want v0.0.1+karve.1"},
	{"simulate-nodes", "two", "simulate-nodes: two: want a number"},
	{"manifests", "deploy/none.yaml", "manifests: deploy/none.yaml does not exist"},
	{"manifests", "*.yaml", "manifests: *.yaml does not exist"},
	{"args", "--no-such-option", "there is no option --no-such-option"},
}

// action is action.yml as far as a runner needs it here.
type action struct {
	Inputs map[string]struct{ Default string }
	Runs   struct {
		Using string
		Steps []struct {
			ID, Shell, Run string
			Env            map[string]string
		}
	}
}

// runAction runs the step of action.yml as a runner does, with the release at url, whose install.sh is in
// release: once with inputs that work, and once with each of wrongInputs.
func runAction(file, release, url string, stdout io.Writer) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var a action
	if err := yaml.Unmarshal(text, &a); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if a.Runs.Using != "composite" || len(a.Runs.Steps) != 1 || a.Runs.Steps[0].Shell != "bash" {
		return fmt.Errorf("%s: want a composite action with one step in bash", file)
	}
	began := time.Now()
	works := map[string]string{
		"simulate-nodes": "2", "manifests": "crd.yaml \r\n\tobjects.yaml\n", "args": "--feature-gates=ContextualLogging=false\r\n",
	}
	if out, err := a.run(release, url, works, afterAction); err != nil {
		return fmt.Errorf("%s: %w: %s", file, err, out)
	}
	fmt.Fprintf(stdout, "%-48s  %5.2f\n", "the action, and a step after it", time.Since(began).Seconds())
	out, err := a.run(release, url, map[string]string{"manifests": "invalid.yaml"}, afterFailure)
	if err == nil || !strings.Contains(out, "manifests: invalid.yaml could not be applied") || !strings.HasSuffix(out, "the log is there\n") {
		return fmt.Errorf("%s: %v after manifests that cannot be applied, want an error and the log: %s", file, err, out)
	}
	for _, w := range wrongInputs {
		out, err := a.run(release, url, map[string]string{w.input: w.value}, "")
		if err == nil || !strings.Contains(out, w.want) || !strings.Contains(out, "::error::") {
			return fmt.Errorf("%s: %s: %q: %v, want %q and an error: %s", file, w.input, w.value, err, w.want, out)
		}
	}
	return nil
}

// run runs the action with inputs, and the script then as the next step, also if the action fails. It ends what they have started.
func (a action) run(release, url string, inputs map[string]string, then string) (said string, err error) {
	home, err := os.MkdirTemp("", "action-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(home)
	work, files := filepath.Join(home, "work"), map[string]string{}
	if err := os.CopyFS(work, os.DirFS("scripts/testdata/action")); err != nil {
		return "", err
	}
	for _, name := range []string{"GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT"} {
		files[name] = filepath.Join(home, name)
		if err := os.WriteFile(files[name], nil, 0o600); err != nil {
			return "", err
		}
	}
	env := []string{"HOME=" + home, "PATH=/usr/local/bin:/usr/bin:/bin", "RUNNER_TEMP=" + home, "GITHUB_ACTION_PATH=" + release, "KARVE_DOWNLOAD_URL=" + url}
	for name, file := range files {
		env = append(env, name+"="+file)
	}
	step := a.Runs.Steps[0]
	own := env
	for name, expression := range step.Env {
		input := strings.TrimSuffix(strings.TrimPrefix(expression, "${{ inputs."), " }}")
		declared, ok := a.Inputs[input]
		if !ok {
			return "", fmt.Errorf("%s is %q, which is no input", name, expression)
		}
		value, given := inputs[input]
		if !given {
			value = declared.Default
		}
		own = append(own, name+"="+value)
	}
	said, group, err := bash(step.Run, work, own)
	defer func() {
		if still := end(group); still != nil && err == nil {
			err = still
		}
	}()
	if then == "" {
		return said, err
	}
	env, read := next(env, files["GITHUB_ENV"], files["GITHUB_PATH"])
	if read != nil {
		return said, errors.Join(err, read)
	}
	after, _, failed := bash(then, work, env)
	return said + after, errors.Join(err, failed)
}

// bash runs a script as GitHub's runner does. group is its process group, which what runs on belongs to.
func bash(script, dir string, env []string) (said string, group int, err error) {
	cmd := exec.Command("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script)
	cmd.Dir, cmd.Env = dir, env
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", 0, err
	}
	err = cmd.Wait()
	return out.String(), cmd.Process.Pid, err
}

// next is the environment of the step after those that wrote to these files.
func next(env []string, environment, path string) ([]string, error) {
	vars, err := os.ReadFile(environment)
	if err != nil {
		return nil, err
	}
	env = append(env, strings.Fields(string(vars))...)
	dirs, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for dir := range strings.FieldsSeq(string(dirs)) {
		i := slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, "PATH=") })
		env[i] = "PATH=" + dir + ":" + strings.TrimPrefix(env[i], "PATH=")
	}
	return env, nil
}
