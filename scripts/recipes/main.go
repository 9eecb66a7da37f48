// Command recipes does what documents tell users to do. scripts/recipes-test calls it in namespaces of its own:
//
//	recipes follow DOCUMENT PROGRAM-DIRECTORY [RELEASE-DIRECTORY]
//	recipes action RELEASE-DIRECTORY
//
// follow runs the commands of a document, and compares what they print with what stands there. action runs the
// action of action.yml. A web server serves the release, in place of the one on the web.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	var err error
	switch args := append(os.Args[1:], ""); { // without a release, its directory is empty
	case args[0] == "follow" && len(args) >= 4:
		err = follow(args[1], args[2], serve(args[3]))
	case args[0] == "action" && len(args) == 3:
		err = runAction("action.yml", args[1], serve(args[1]))
	default:
		err = errors.New("usage: recipes follow DOCUMENT PROGRAM-DIRECTORY [RELEASE-DIRECTORY] | action RELEASE-DIRECTORY")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "recipes:", err)
		os.Exit(1)
	}
}

// serve serves a release until the program ends. It returns nothing without a directory.
func serve(release string) (url string) {
	if release == "" {
		return ""
	}
	return httptest.NewServer(http.FileServer(http.Dir(release))).URL
}

// nobody is the user who follows recipes, except those of README.md.
const nobody = 65534

// releaseURL is what the recipes download from.
const releaseURL = "https://github.com/karve-k8s/karve/releases/latest/download"

// A block has commands, and lines that they have to print. Without such lines, no command may fail.
type block struct{ script, want string }

// blocks finds the code of a section: commands in sh, and below some of them a text with what they print.
var blocks = regexp.MustCompile("(?ms)^```sh\n(.*?)^```\n(?:```text\n(.*?)^```\n)?")

// follow runs the recipes of a document, its sections, each in an empty directory, as a user without rights. README.md is one
// recipe, of root's, and begins beside a small Go module. The PATH begins with programs. url, unless it is empty, is where
// the release comes from.
func follow(document, programs, url string) error {
	text, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	page, user := "\n"+string(text), uint32(nobody)
	if url != "" {
		page = strings.ReplaceAll(page, releaseURL, url)
	}
	sections := strings.Split(page, "\n## ")
	if document == "README.md" {
		sections, user = []string{"README.md\n" + page}, 0
	}
	followed := 0
	for _, section := range sections {
		var recipe []block
		for _, found := range blocks.FindAllStringSubmatch(section, -1) {
			recipe = append(recipe, block{found[1], found[2]})
		}
		if len(recipe) == 0 {
			continue
		}
		followed++
		title, _, _ := strings.Cut(section, "\n")
		began := time.Now()
		if err := try(recipe, user, programs, url); err != nil {
			return fmt.Errorf("%s: %s: %w", document, title, err)
		}
		fmt.Printf("%-48s  %5.1f s\n", title, time.Since(began).Seconds())
	}
	if followed == 0 {
		return fmt.Errorf("%s: there is no recipe", document)
	}
	return nil
}

// try runs the commands of a recipe, and compares what they print.
func try(recipe []block, user uint32, programs, url string) error {
	if recipe[len(recipe)-1].want == "" {
		return errors.New("the recipe does not end with what its last commands print")
	}
	script := ""
	if user == 0 {
		script = "sudo() { \"$@\"; }\n"
	}
	for _, b := range recipe {
		option := "-e"
		if b.want != "" {
			option = "+e" // the lines decide
		}
		script += fmt.Sprintf("set %s\n%s\nprintf '\\036'\n", option, b.script)
	}
	env := []string{"PATH=" + programs + ":/usr/local/bin:/usr/bin:/bin"}
	if url != "" {
		env = append(env, "KARVE_DOWNLOAD_URL="+url)
	}
	said, logs, err := bash(script, "scripts/testdata/your-operator", "your-operator", env, user)
	if err != nil {
		return fmt.Errorf("%w\n%s%s", err, said, logs)
	}
	printed := strings.Split(said, "\x1e")
	for i, b := range recipe {
		if missing := b.missing(printed[i]); missing != "" {
			return fmt.Errorf("these commands\n\n%s\ndid not print, in this order, %q\n%s%s", b.script, missing, printed[i], logs)
		}
	}
	return nil
}

// ages are times in a table, or of a test.
var ages = regexp.MustCompile(`\b[0-9]+(\\\.[0-9]+)?s\b`)

// missing returns the first line that is not in what was printed, after the line before it. Three dots stand for
// anything, any number of spaces for another, and an age for another.
func (b block) missing(printed string) string {
	lines := strings.Split(printed, "\n")
	for want := range strings.Lines(b.want) {
		quoted := strings.ReplaceAll(regexp.QuoteMeta(strings.Join(strings.Fields(want), " ")), "…", ".*")
		pattern := regexp.MustCompile("^" + ages.ReplaceAllString(quoted, `[0-9.ms]+`) + "$")
		found := slices.IndexFunc(lines, func(line string) bool {
			return pattern.MatchString(strings.Join(strings.Fields(line), " "))
		})
		if found < 0 {
			return want
		}
		lines = lines[found+1:]
	}
	return ""
}

// patience is how long a script may take on a busy machine, and then what it has started, to end.
const patience = 5 * time.Minute

// bash runs a script in a new directory, HOME, in which a copy of files is called name. It ends what the script has
// started. logs has the ends of the log files that the script has left.
func bash(script, files, name string, env []string, user uint32) (said, logs string, err error) {
	home, err := os.MkdirTemp("", "recipe-")
	if err != nil {
		return "", "", err
	}
	defer os.RemoveAll(home)
	if err := errors.Join(os.CopyFS(filepath.Join(home, name), os.DirFS(files)), os.Chown(home, int(user), int(user))); err != nil {
		return "", "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir, cmd.Env = home, append(env, "HOME="+home)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: user, Gid: user}}
	cmd.WaitDelay = time.Second // what runs on in the background keeps our pipes open
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", "", err
	}
	if err = cmd.Wait(); errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	signal := syscall.SIGTERM
	for asked := time.Now(); syscall.Kill(-cmd.Process.Pid, signal) == nil; time.Sleep(10 * time.Millisecond) {
		if signal = 0; time.Since(asked) > patience {
			return out.String(), "", errors.Join(err, errors.New("what was started is still there"))
		}
	}
	names, _ := filepath.Glob(home + "/*.log")
	ends, _ := exec.Command("tail", append([]string{"-n", "50"}, names...)...).Output()
	return out.String(), string(ends), err
}
