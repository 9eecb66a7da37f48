package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// nobody is the user who follows recipes, except those of README.md.
const nobody = 65534

// readme is one recipe from top to bottom. Root follows it, as it installs a service.
const readme = "README.md"

// patience is how long a recipe of a document may take on a busy machine.
const patience = 5 * time.Minute

// between is what the script of a recipe prints after each block.
const between = "\x1e"

// A tutorial is a section of a document whose commands a reader copies one block after the other.
type tutorial struct {
	title  string
	user   uint32
	blocks []block
}

// A block has commands, and lines that they have to print. Without such lines, no command may fail;
// with them, the lines decide.
type block struct {
	script string
	want   []string
}

// releaseURL is what the recipes download from.
const releaseURL = "https://github.com/karve-k8s/karve/releases/latest/download"

// follow runs the recipes of a document, each in a directory of its own, as a user without rights. The directory has only
// your-operator, a small Go module. The PATH begins with programs. url, unless it is empty, is where the release comes from.
func follow(document, programs, url string, stdout io.Writer) error {
	text, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	page := string(text)
	if url != "" {
		page = strings.ReplaceAll(page, releaseURL, url)
	}
	tutorials, err := parsePage(page)
	if err != nil {
		return fmt.Errorf("%s: %w", document, err)
	}
	if document == readme {
		whole := tutorial{title: readme}
		for _, t := range tutorials {
			whole.blocks = append(whole.blocks, t.blocks...)
		}
		tutorials = []tutorial{whole}
	}
	for _, t := range tutorials {
		began := time.Now()
		if err := t.follow(programs, url); err != nil {
			return fmt.Errorf("%s: %s: %w", document, t.title, err)
		}
		fmt.Fprintf(stdout, "%-48s  %5.1f s\n", t.title, time.Since(began).Seconds())
	}
	return nil
}

// parsePage finds the recipes: sections of the second level. Blocks in sh are commands, and a block of text below one has
// the lines that it prints. Blocks in yaml are for other programs.
func parsePage(page string) ([]tutorial, error) {
	var tutorials []tutorial
	var language string
	var lines []string
	inside := false
	for line := range strings.Lines(page) {
		line = strings.TrimRight(line, "\n")
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && !inside:
			inside, language, lines = true, fence, nil
		case isFence:
			inside = false
			if language == "yaml" {
				continue
			}
			if len(tutorials) == 0 {
				return nil, errors.New("a code block is above the first recipe")
			}
			t := &tutorials[len(tutorials)-1]
			last := len(t.blocks) - 1
			switch {
			case language == "sh":
				t.blocks = append(t.blocks, block{script: strings.Join(lines, "\n")})
			case language == "text" && last >= 0 && t.blocks[last].want == nil && len(lines) > 0:
				t.blocks[last].want = lines
			default:
				return nil, fmt.Errorf("%s: a block in %q is neither commands (sh) nor what the commands above it print (text)", t.title, language)
			}
		case inside:
			lines = append(lines, line)
		case strings.HasPrefix(line, "## "):
			tutorials = append(tutorials, tutorial{title: strings.TrimPrefix(line, "## "), user: nobody})
		}
	}
	if inside {
		return nil, errors.New("a code block has no end")
	}
	tutorials = slices.DeleteFunc(tutorials, func(t tutorial) bool { return len(t.blocks) == 0 })
	if len(tutorials) == 0 {
		return nil, errors.New("there is no recipe")
	}
	for _, t := range tutorials {
		if t.blocks[len(t.blocks)-1].want == nil {
			return nil, fmt.Errorf("%s does not end with a proof: commands, and a block of text with what they print", t.title)
		}
	}
	return tutorials, nil
}

// follow runs the commands, and compares what they print.
func (t tutorial) follow(programs, url string) (err error) {
	home, err := os.MkdirTemp("", "recipe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(home)
	if err := os.CopyFS(filepath.Join(home, "your-operator"), os.DirFS("scripts/testdata/your-operator")); err != nil {
		return err
	}
	if err := os.Chown(home, int(t.user), int(t.user)); err != nil {
		return err
	}
	var script strings.Builder
	if t.user == 0 {
		script.WriteString("sudo() { \"$@\"; }\n")
	}
	for _, b := range t.blocks {
		option := "-e"
		if b.want != nil {
			option = "+e"
		}
		fmt.Fprintf(&script, "set %s\n%s\nprintf '\\036'\n", option, b.script)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, "bash", "-c", script.String())
	cmd.Dir = home
	cmd.Env = []string{"HOME=" + home, "PATH=" + programs + ":/usr/local/bin:/usr/bin:/bin"}
	if url != "" {
		cmd.Env = append(cmd.Env, "KARVE_DOWNLOAD_URL="+url)
	}
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = time.Second // what runs on in the background may keep our pipes open
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: t.user, Gid: t.user}}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		if still := end(cmd.Process.Pid); still != nil && err == nil {
			err = still
		}
	}()
	err = cmd.Wait()
	if ctx.Err() != nil {
		err = fmt.Errorf("it is not done after %v", patience)
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("%w\n%s%s", err, output.String(), logs(home))
	}
	printed := strings.Split(output.String(), between)
	for i, b := range t.blocks {
		if missing := b.missing(printed[i]); missing != "" {
			return fmt.Errorf("these commands\n\n%s\n\ndid not print, in this order, %q\n%s%s", b.script, missing, printed[i], logs(home))
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
	for _, want := range b.want {
		quoted := strings.ReplaceAll(regexp.QuoteMeta(strings.Join(strings.Fields(want), " ")), "…", ".*")
		quoted = ages.ReplaceAllString(quoted, `[0-9.ms]+`)
		pattern := regexp.MustCompile("^" + quoted + "$")
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

// logs returns the ends of the log files that a recipe has left.
func logs(dir string) string {
	const most = 4000
	var all strings.Builder
	names, _ := filepath.Glob(filepath.Join(dir, "*.log"))
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		fmt.Fprintf(&all, "\n%s:\n%s", filepath.Base(name), text[max(0, len(text)-most):])
	}
	return all.String()
}
