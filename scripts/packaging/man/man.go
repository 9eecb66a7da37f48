// Package man makes manual pages of what `karve --help` prints, one for each command.
package man

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// Page is a page of section 1.
type Page struct {
	Name string // karve-certs-list
	Text string // roff
}

// Pages asks a program that runs on this machine for its help, and that of all commands below it.
func Pages(program, version string, date time.Time) ([]Page, error) {
	return pages(program, version, date, nil)
}

func pages(program, version string, date time.Time, command []string) ([]Page, error) {
	args := append(command[:len(command):len(command)], "--help")
	if len(command) == 1 && command[0] == "server" {
		args = append(args, "--all")
	}
	out, err := exec.Command(program, args...).Output()
	if err != nil {
		return nil, fmt.Errorf("karve %s: %w", strings.Join(args, " "), err)
	}
	help, err := parse(string(out))
	if err != nil {
		if len(command) == 1 && command[0] == "kubectl" {
			return nil, nil // it is kubectl's help
		}
		return nil, fmt.Errorf("karve %s: %w", strings.Join(args, " "), err)
	}
	all := []Page{{strings.Join(append([]string{"karve"}, command...), "-"), help.roff(command, version, date)}}
	for _, s := range help.sections {
		for _, e := range s.entries {
			if !strings.HasPrefix(e.term, "-") && e.term != "help" {
				below, err := pages(program, version, date, append(command[:len(command):len(command)], e.term))
				if err != nil {
					return nil, err
				}
				all = append(all, below...)
			}
		}
	}
	return all, nil
}

// help is what --help prints: a usage, paragraphs, and sections of options or commands.
type help struct {
	usage      string
	paragraphs []string // the first says what the command does, in a sentence
	sections   []section
	last       []string // paragraphs after the sections
}

type section struct {
	title   string
	entries []entry
}

type entry struct{ term, text string }

var (
	title = regexp.MustCompile(`^[A-Z][A-Z',&/ -]+$`)
	gap   = regexp.MustCompile(` {2,}`)
)

func parse(text string) (*help, error) {
	first, rest, _ := strings.Cut(text, "\n")
	h := &help{}
	var ok bool
	if h.usage, ok = strings.CutPrefix(first, "Usage: "); !ok || !strings.HasPrefix(h.usage, "karve") {
		return nil, fmt.Errorf("its help begins with %q: want Usage: karve", first)
	}
	paragraph := []string{}
	end := func() {
		if len(paragraph) == 0 {
			return
		}
		joined := strings.Join(paragraph, "\n")
		paragraph = paragraph[:0]
		if len(h.sections) == 0 {
			h.paragraphs = append(h.paragraphs, joined)
		} else {
			h.last = append(h.last, joined)
		}
	}
	for line := range strings.Lines(rest) {
		line = strings.TrimRight(line, "\n")
		inside := len(h.sections) > 0
		switch {
		case line == "":
			end()
		case title.MatchString(line):
			end()
			h.sections = append(h.sections, section{title: line})
		case inside && strings.HasPrefix(line, "   "): // goes on
			s := &h.sections[len(h.sections)-1]
			if len(s.entries) == 0 {
				return nil, fmt.Errorf("the section %s begins with %q", s.title, line)
			}
			e := &s.entries[len(s.entries)-1]
			e.text = strings.TrimSpace(e.text + " " + strings.TrimSpace(line))
		case inside && strings.HasPrefix(line, "  "):
			s := &h.sections[len(h.sections)-1]
			columns := append(gap.Split(strings.TrimSpace(line), 2), "")
			s.entries = append(s.entries, entry{columns[0], columns[1]})
		default:
			paragraph = append(paragraph, line)
		}
	}
	end()
	if len(h.paragraphs) == 0 {
		return nil, fmt.Errorf("its help does not say what it does")
	}
	return h, nil
}

func (h *help) roff(command []string, version string, date time.Time) string {
	var b strings.Builder
	name := strings.Join(append([]string{"karve"}, command...), "-")
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(`.TH "%s" "1" "%s" "Karve %s" "Karve"`, escape(strings.ToUpper(name)), date.UTC().Format("2006-01-02"), escape(version))
	line(".ad l\n.nh") // names of options are not taken apart
	line(".SH NAME")
	line(`%s \- %s`, escape(name), escape(summary(h.paragraphs[0])))
	line(".SH SYNOPSIS")
	line("%s", escape(h.usage))
	line(".SH DESCRIPTION")
	for _, p := range h.paragraphs {
		line(".PP\n%s", escape(p))
	}
	for _, s := range h.sections {
		line(".SH %s", escape(s.title))
		for _, e := range s.entries {
			line(".TP\n\\fB%s\\fR\n%s", escape(e.term), escape(e.text))
		}
	}
	for _, p := range h.last {
		line(".PP\n%s", escape(p))
	}
	line(".SH SEE ALSO")
	if len(command) > 0 {
		line(`.BR karve (1),`)
	}
	line("https://github.com/karve\\-k8s/karve")
	return b.String()
}

// summary is a sentence as the line NAME has it.
func summary(sentence string) string {
	s := strings.TrimSuffix(strings.Join(strings.Fields(sentence), " "), ".")
	if strings.HasPrefix(s, "Karve ") || s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

var escapes = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n.", "\n\\&.", "\n'", "\n\\&'")

func escape(text string) string {
	text = escapes.Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}
