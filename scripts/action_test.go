package scripts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The tag of the action has what a commit builds, and all of it.
func TestActionIsTaggedFromACommit(t *testing.T) {
	const built = "#!/bin/sh\n[ \"$1\" != run ] || { mkdir dist && cat main.js >dist/main.js && echo post >dist/post.js; }\n"
	for name, c := range map[string]struct {
		npm, change, want string
		args              []string
	}{
		"a commit":         {npm: built, args: []string{"--tag", "action-v1"}},
		"a changed file":   {npm: built, change: "LICENSE", args: []string{"--tag", "action-v1"}, want: "action: the tree has changes"},
		"a new file":       {npm: built, change: "action/new.js", args: []string{"--tag", "action-v1"}, want: "action: the tree has changes"},
		"nothing built":    {npm: "#!/bin/sh\n", args: []string{"--tag", "action-v1"}, want: "build/action/dist/main.js is missing or empty"},
		"an empty program": {npm: "#!/bin/sh\nmkdir -p dist && : >dist/main.js\n", args: []string{"--tag", "action-v1"}, want: "build/action/dist/main.js is missing or empty"},
		"no tag":           {npm: built, args: []string{"--tag", ""}, want: "usage: "},
		"no directory":     {npm: built, args: []string{""}, want: "usage: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			script, err := os.ReadFile("action")
			if err != nil {
				t.Fatal(err)
			}
			for file, text := range map[string]string{
				"scripts/action": string(script), "bin/npm": c.npm, "LICENSE": "license", "install.sh": "release_keys='key'\n",
				"action/main.js": "main", "action/package.json": "{}", "action/action.yml": "name: x", ".gitignore": "/build/\n",
				"build/action-source/dist/main.js": "of an earlier build",
			} {
				path := filepath.Join(dir, file)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o700)); err != nil {
					t.Fatal(err)
				}
			}
			run := func(name string, args ...string) (string, error) {
				cmd := exec.CommandContext(t.Context(), name, args...)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "GIT_CONFIG_GLOBAL=/dev/null",
					"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@example.com")
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			for _, args := range []string{"init -q", "add .", "commit -q -m Begin"} {
				if out, err := run("git", strings.Fields(args)...); err != nil {
					t.Fatalf("git %s: %v\n%s", args, err, out)
				}
			}
			if c.change != "" {
				if err := os.WriteFile(filepath.Join(dir, c.change), []byte("changed"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			out, err := run("scripts/action", c.args...)
			tag, tagErr := run("git", "ls-tree", "-r", "--name-only", "action-v1")
			if c.want != "" {
				if err == nil || !strings.Contains(out, c.want) || tagErr == nil {
					t.Errorf("got %q, %v and the tag %q, want %q and no tag", out, err, tag, c.want)
				}
				return
			}
			if want := "LICENSE\naction.yml\ndist/main.js\ndist/post.js\npackage.json\nrelease-keys\n"; err != nil || tag != want {
				t.Errorf("got %q, %v, and the tag has %q, want %q", out, err, tag, want)
			}
		})
	}
}
