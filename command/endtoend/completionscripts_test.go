package endtoend

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Names of objects come from the cluster, where anybody who may create one chooses its name (those
// of RBAC's objects may have any character). bash must not run them.
func TestBashDoesNotRunProposals(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("this machine has no bash")
	}
	const stub = `karve() {
  if [ "$1" = kubectl ]; then printf '%s\n' 'a$(touch made)	its description' 'a*' 'a b' 'a` + "`touch made`" + `' '${a}' plain :4 Directive
  else printf '%s\n' 'a$(touch made):usage' 'other'; fi
}
`
	script := karve(t, "completion", "bash")
	for _, test := range []struct{ words, want string }{
		{`karve kubectl get a`, "a\\$\\(touch\\ made\\)\na\\*\na\\ b\na\\`touch\\ made\\`\n"},
		{`karve kubectl get 'a\$\('`, "a\\$\\(touch\\ made\\)\n"}, // as bash quoted it before
		{`karve kubectl get '*'`, ""},
		{`karve kubectl get p`, "plain\n"},
		{`karve a`, "a\\$\\(touch\\ made\\)\n"},
		{`karve o`, "other\n"},
		{`karve x`, ""},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "abc"), nil, 0o600); err != nil { // what a* matches
			t.Fatal(err)
		}
		run := exec.Command(bash, "--norc", "-c", stub+script+
			"COMP_WORDS=("+test.words+"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _karve\n"+
			`if [ ${#COMPREPLY[@]} -gt 0 ]; then printf '%s\n' "${COMPREPLY[@]}"; fi`)
		run.Dir, run.Stderr = dir, os.Stderr
		got, err := run.Output()
		if err != nil || string(got) != test.want {
			t.Errorf("%s: got %q, %v, want %q", test.words, got, err, test.want)
		}
		if _, err := os.Lstat(filepath.Join(dir, "made")); err == nil {
			t.Errorf("%s: bash ran a proposal", test.words)
		}
	}
}

// A shell that asks what could come next runs nothing, also behind "--", and makes no file.
func TestCompletionHasNoEffect(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	made, data := filepath.Join(dir, "made"), filepath.Join(dir, "data")
	for _, args := range [][]string{
		{"run", "--", "touch", made},
		{"run", "touch", made},
		{"run", "--data-dir", data, "--", "touch", made},
		{"server", "--data-dir", data, "--"},
		{"server", "--data-dir", data},
		{"snapshot", "--data-dir", data, "--", made},
		{"envtest-assets", "--dir", data, "--"},
		{"cluster-token", "create", "--", made},
		{"support", "--", made},
	} {
		got := finish(t, command(t, "karve", append(args, "--generate-bash-completion")...))
		if got.code != 0 || got.stderr != "" {
			t.Errorf("%q: %+v", args, got)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Fatalf("%q made %v, %v", args, left, err)
		}
	}
}

// The script works when it is sourced, with and without completion being there, and as a file in fpath, whose first
// call has to complete as well.
func TestZshCompletes(t *testing.T) {
	t.Parallel()
	zsh, err := exec.LookPath("zsh")
	if err != nil {
		t.Skip("this machine has no zsh")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "_karve"), []byte(karve(t, "completion", "zsh")), 0o600); err != nil {
		t.Fatal(err)
	}
	const call = `
karve() {
  if [[ $1 == kubectl ]]; then print -l $'pods\tits description' :4; else print -l datastore:usage status:usage; fi
}
compadd() { shift; print -l -- "$@" }
words=(karve d) CURRENT=2
$_comps[karve]
words=(karve kubectl get p) CURRENT=4
$_comps[karve]
`
	for name, begin := range map[string]string{
		"sourced":                    "autoload -Uz compinit; compinit -i; source $DIR/_karve",
		"sourced without completion": "source $DIR/_karve",
		"in fpath":                   "fpath=($DIR $fpath); autoload -Uz compinit; compinit -i",
	} {
		run := exec.Command(zsh, "-f", "-c", begin+call)
		run.Env = append(os.Environ(), "DIR="+dir, "ZDOTDIR="+t.TempDir())
		got, err := run.CombinedOutput()
		if want := "datastore\nstatus\npods\n"; err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}
}
