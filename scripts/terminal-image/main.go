// Command terminal-image makes the picture of a terminal in README.md, docs/images/terminal.svg:
//
//	go run ./scripts/terminal-image KARVE
//
// It runs what README.md has under "Try it", without the download, with the program KARVE. Each line of the picture appears
// when it was printed, and the last one says how long everything took. A browser that reduces motion shows all lines
// at once. The test compares the picture with README.md. Needs bash.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

const picture = "docs/images/terminal.svg"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "terminal-image:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: terminal-image KARVE")
	}
	page, err := os.ReadFile("README.md")
	if err != nil {
		return err
	}
	command, _, err := example(string(page))
	if err != nil {
		return err
	}
	lines, err := record(command, args[0])
	if err != nil {
		return err
	}
	return os.WriteFile(picture, []byte(draw(lines)), 0o644)
}

// A line is what the terminal shows after some time.
type line struct {
	text  string
	typed bool // by the user
	after time.Duration
}

var blocks = regexp.MustCompile("(?s)\n## Try it\n.*?\n```sh\n(.*?)```\n```text\n(.*?)```\n")

// example returns the command below "Try it" that uses the program, and what it prints.
func example(page string) (command, printed string, err error) {
	found := blocks.FindStringSubmatch(page)
	if found == nil {
		return "", "", errors.New(`README.md: want a block in sh and one of text below "Try it"`)
	}
	_, command, ok := strings.Cut(found[1], "sh install.sh binary .\n")
	if !ok {
		return "", "", errors.New("README.md: want a line that installs the program into this directory")
	}
	return command, found[2], nil
}

// record runs the command where ./karve is the program.
func record(command, karve string) ([]line, error) {
	dir, err := os.MkdirTemp("", "terminal-image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if karve, err = filepath.Abs(karve); err != nil {
		return nil, err
	}
	if err := os.Symlink(karve, filepath.Join(dir, "karve")); err != nil {
		return nil, err
	}
	var lines []line
	for text := range strings.Lines(command) {
		lines = append(lines, line{text: strings.TrimRight(text, "\n"), typed: true})
	}
	cmd := exec.Command("bash", "-c", command)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	for printed := bufio.NewScanner(out); printed.Scan(); {
		lines = append(lines, line{text: printed.Text(), after: time.Since(began)})
	}
	if err := cmd.Wait(); err != nil {
		return nil, err
	}
	took := time.Since(began)
	return append(lines, line{text: fmt.Sprintf("# everything is gone again after %.1f s", took.Seconds()), after: took}), nil
}

const (
	width, lineHeight, top, left = 780, 20, 56, 20
	// The lines are visible where nothing moves.
	head = `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" role="img">
<style>
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d1d7e0; white-space: pre }
.typed { fill: #f0f6fc; font-weight: 600 }
.note { fill: #3fb950 }
@media (prefers-reduced-motion: no-preference) {
  .printed { animation: appear 0.01s backwards }
  @keyframes appear { from { opacity: 0 } }
}
</style>
<rect width="%[1]d" height="%[2]d" rx="8" fill="#161b22"/>
<circle cx="22" cy="20" r="6" fill="#f85149"/><circle cx="42" cy="20" r="6" fill="#d29922"/><circle cx="62" cy="20" r="6" fill="#3fb950"/>
`
)

// draw returns the picture.
func draw(lines []line) string {
	var svg strings.Builder
	fmt.Fprintf(&svg, head, width, top+lineHeight*len(lines))
	for i, l := range lines {
		class, text := "printed", l.text
		switch {
		case l.typed && i == 0:
			class, text = "typed", "$ "+text
		case l.typed:
			class, text = "typed", "  "+text
		case i == len(lines)-1:
			class = "printed note"
		}
		fmt.Fprintf(&svg, "<text x=\"%d\" y=\"%d\" class=\"%s\" style=\"animation-delay: %.2fs\" xml:space=\"preserve\">%s</text>\n",
			left, top+lineHeight*i, class, l.after.Seconds(), html.EscapeString(text))
	}
	return svg.String() + "</svg>\n"
}
