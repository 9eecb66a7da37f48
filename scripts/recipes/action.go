package main

import (
	"fmt"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// asRunner runs the step of the action as GitHub's runner does, and the next step as the step has left the environment.
const asRunner = `export RUNNER_TEMP=$HOME GITHUB_ENV=$HOME/env GITHUB_PATH=$HOME/path GITHUB_OUTPUT=$HOME/output
touch "$GITHUB_ENV" "$GITHUB_PATH" "$GITHUB_OUTPUT"
cd files
bash --noprofile --norc -eo pipefail -c "$STEP"
status=$?
set -ae
. "$GITHUB_ENV"
PATH=$(cat "$GITHUB_PATH"):$PATH
eval "$NEXT"
echo the next step works
exit $status
`

// cases are the inputs of the action, what the next step does, and what the job shows; an error, except for the first.
var cases = []struct {
	inputs     map[string]string
	next, want string
}{
	{map[string]string{"simulate-nodes": "2", "manifests": "crd.yaml \r\n\tobjects.yaml\n", "args": "--feature-gates=ContextualLogging=false\r\n"},
		`karve kubectl get widgets small
			karve kubectl rollout status deployment/web --timeout=5m
			[ "$(karve kubectl get nodes --output name | wc -l)" = 2 ]
			[ -s "$KUBECONFIG" ]
			karve status | grep "^data directory *$KARVE_DATA_DIR\$"`, "data directory"},
	{map[string]string{"manifests": "invalid.yaml"},
		`karve kubectl get namespaces
			[ -s "$(sed -n 's/^log=//p' "$GITHUB_OUTPUT")" ]`, "manifests: invalid.yaml could not be applied"},
	{map[string]string{"version": "v1.37.2+karve.1/../.."}, "", "want a release such as v1.37.2+karve.1, or latest"},
	{map[string]string{"version": "v0.0.1+karve.1"}, "", "want v0.0.1+karve.1"},
	{map[string]string{"simulate-nodes": "two"}, "", "simulate-nodes: two: want a number"},
	{map[string]string{"manifests": "deploy/none.yaml"}, "", "manifests: deploy/none.yaml does not exist"},
	{map[string]string{"args": "--no-such-option"}, "", "there is no option --no-such-option"},
}

// followAction runs the step of action.yml with the release at url, whose install.sh is in release.
func followAction(file, release, url string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var action struct {
		Inputs map[string]struct{ Default string }
		Runs   struct {
			Steps []struct {
				Run string
				Env map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &action); err != nil || len(action.Runs.Steps) != 1 {
		return fmt.Errorf("want one step: %v", err)
	}
	step := action.Runs.Steps[0]
	for i, c := range cases {
		env := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "GITHUB_ACTION_PATH=" + release, "KARVE_DOWNLOAD_URL=" + url, "STEP=" + step.Run, "NEXT=" + c.next}
		for name, expression := range step.Env {
			input := strings.TrimSuffix(strings.TrimPrefix(expression, "${{ inputs."), " }}")
			value, given := c.inputs[input]
			if !given {
				value = action.Inputs[input].Default
			}
			env = append(env, name+"="+value)
		}
		said, _, err := bash(asRunner, "scripts/testdata/action", "files", env, 0)
		if (err == nil) != (i == 0) || (i > 0) != strings.Contains(said, "::error::") || !strings.Contains(said, c.want) || !strings.Contains(said, "the next step works") {
			return fmt.Errorf("%q: %v, want %q in: %s", c.inputs, err, c.want, said)
		}
	}
	fmt.Println("the action")
	return nil
}
