// Command recipes does what documents tell users to do. scripts/recipes-test calls it in namespaces of its own:
//
//	recipes DOCUMENT PROGRAM-DIRECTORY [RELEASE-DIRECTORY]
//
// It runs the commands of a document, and compares what they print with what stands there. DOCUMENT may also be action.yml.
// A web server serves the release, in place of the one on the web.
package main

import (
	"bytes"
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
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: recipes DOCUMENT PROGRAM-DIRECTORY [RELEASE-DIRECTORY]")
		os.Exit(2)
	}
	document, url := os.Args[1], ""
	if len(os.Args) > 3 {
		url = httptest.NewServer(http.FileServer(http.Dir(os.Args[3]))).URL
	}
	var err error
	if document == "action.yml" {
		err = followAction(document, os.Args[len(os.Args)-1], url)
	} else {
		err = followPage(document, os.Args[2], url)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "recipes: %s: %v\n", document, err)
		os.Exit(1)
	}
}

// nobody is the user who follows recipes, except those of README.md.
const nobody = 65534

// releaseURL is what the recipes download from.
const releaseURL = "https://github.com/karve-k8s/karve/releases/latest/download"

// blocks finds the code of a section: commands in sh, and below some of them a text with what they print. Without
// a text, no command may fail.
var blocks = regexp.MustCompile("(?ms)^```sh\n(.*?)^```\n(?:```text\n(.*?)^```\n)?")

// followPage runs the recipes of a document, its sections, each in an empty directory, as a user without rights. README.md is
// one recipe, of root's, and begins beside a small Go module. The PATH begins with programs. url, unless it is empty, is
// where the release comes from.
func followPage(document, programs, url string) error {
	text, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	page, user, script := "\n"+string(text), uint32(nobody), ""
	env := []string{"PATH=" + programs + ":/usr/local/bin:/usr/bin:/bin"}
	if url != "" {
		page = strings.ReplaceAll(page, releaseURL, url)
		env = append(env, "KARVE_DOWNLOAD_URL="+url)
	}
	sections := strings.Split(page, "\n## ")
	if document == "README.md" {
		sections, user, script = []string{page}, 0, "sudo() { \"$@\"; }\n"
	}
	followed := 0
	for _, section := range sections {
		recipe := blocks.FindAllStringSubmatch(section, -1)
		if recipe == nil {
			continue
		}
		followed++
		title, _, _ := strings.Cut(strings.TrimSpace(section), "\n")
		if err := try(recipe, script, env, user); err != nil {
			return fmt.Errorf("%s: %w", title, err)
		}
		fmt.Println(title)
	}
	if followed == 0 {
		return errors.New("there is no recipe")
	}
	return nil
}

// try runs the commands of a recipe, and compares what they print.
func try(recipe [][]string, script string, env []string, user uint32) error {
	if recipe[len(recipe)-1][2] == "" {
		return errors.New("the recipe does not end with what its last commands print")
	}
	for _, block := range recipe {
		option := "-e"
		if block[2] != "" {
			option = "+e" // the lines decide
		}
		script += fmt.Sprintf("set %s\n%s\nprintf '\\036'\n", option, block[1])
	}
	said, logs, err := bash(script, "scripts/testdata/your-operator", "your-operator", env, user)
	if err != nil {
		return fmt.Errorf("%w\n%s%s", err, said, logs)
	}
	printed := strings.Split(said, "\x1e")
	for i, block := range recipe {
		if missing := missing(block[2], printed[i]); missing != "" {
			return fmt.Errorf("these commands\n\n%s\ndid not print, in this order, %q\n%s%s", block[1], missing, printed[i], logs)
		}
	}
	return nil
}

// ages are times in a table, or of a test.
var ages = regexp.MustCompile(`\b[0-9]+(\\\.[0-9]+)?s\b`)

// missing returns the first line of want that is not in what was printed, after the line before it. Three dots stand for
// anything, any number of spaces for another, and an age for another.
func missing(want, printed string) string {
	lines := strings.Split(printed, "\n")
	for want := range strings.Lines(want) {
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

// bash runs a script in a new directory, HOME, in which a copy of files is called name. It ends what the script has
// started. logs has the ends of the log files that the script has left. Each has five minutes, on a busy machine.
func bash(script, files, name string, env []string, user uint32) (said, logs string, err error) {
	home, err := os.MkdirTemp("", "recipe-")
	if err != nil {
		return "", "", err
	}
	defer os.RemoveAll(home)
	if err := errors.Join(os.CopyFS(filepath.Join(home, name), os.DirFS(files)), os.Chown(home, int(user), int(user))); err != nil {
		return "", "", err
	}
	cmd := exec.Command("timeout", "300", "bash", "-c", script)
	cmd.Dir, cmd.Env = home, append(env, "HOME="+home)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: user, Gid: user}}
	cmd.WaitDelay = time.Second // what runs on in the background keeps our pipes open
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err = cmd.Run(); errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	if cmd.Process == nil {
		return "", "", err
	}
	signal := syscall.SIGTERM
	for asked := time.Now(); syscall.Kill(-cmd.Process.Pid, signal) == nil; time.Sleep(10 * time.Millisecond) {
		if signal = 0; time.Since(asked) > 5*time.Minute {
			return out.String(), "", errors.Join(err, errors.New("what was started is still there"))
		}
	}
	ends, _ := exec.Command("sh", "-c", `tail -n 50 "$0"/*.log`, home).Output()
	return out.String(), string(ends), err
}
