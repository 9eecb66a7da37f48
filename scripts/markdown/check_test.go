// Package markdown_test finds what the project's documents name and the project does not
// have: the target of a link, a heading, a file, a test, an image's text.
package markdown_test

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// check reads every Markdown file in project and returns a line for each mistake, in
// the order of the files. A line begins with the file and the line number.
func check(project fs.FS) ([]string, error) {
	documents, tests, err := read(project)
	if err != nil {
		return nil, err
	}

	var mistakes []string
	for _, name := range slices.Sorted(maps.Keys(documents)) {
		document := documents[name]
		report := func(line int, format string, arguments ...any) {
			mistakes = append(mistakes, fmt.Sprintf("%s:%d: ", name, line)+fmt.Sprintf(format, arguments...))
		}
		for _, link := range document.links {
			if problem := follow(project, documents, name, link.text); problem != "" {
				report(link.line, "%s: %s", link.text, problem)
			}
		}
		for _, span := range document.spans {
			if named := repositoryPath(project, name, span.text); named != "" && !exists(project, named) {
				report(span.line, "`%s`: there is no such file", span.text)
			}
		}
		for _, test := range document.tests {
			if !slices.ContainsFunc(tests, func(name string) bool { return strings.HasPrefix(name, test.text) }) {
				report(test.line, "%s: there is no such test", test.text)
			}
		}
	}
	return mistakes, nil
}

// A document is what check needs to know of one Markdown file.
type document struct {
	anchors map[string]bool // of its headings, as GitHub makes them
	links   []mention       // targets of links and images, as written
	spans   []mention       // text between backticks, and words of code blocks
	tests   []mention       // names of Go tests, or what -run takes for several
}

type mention struct {
	text string
	line int
}

var (
	linkPattern  = regexp.MustCompile(`\]\(([^()\s]+)\)|(?:src|srcset|href)="([^"]+)"`)
	spanPattern  = regexp.MustCompile("`([^`]+)`")
	testPattern  = regexp.MustCompile(`\b(?:Test|Benchmark|Fuzz)[A-Z]\w+`)
	goTest       = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)[A-Z]\w*)\(`)
	headingLine  = regexp.MustCompile(`^#{1,6} +(.*?)\s*#*$`)
	explicitName = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
)

// parse reads one file. Code blocks hold no links and no headings.
func parse(text string) document {
	parsed := document{anchors: map[string]bool{}}
	seen := map[string]int{}
	fenced := false
	for number, line := range strings.Split(text, "\n") {
		number++
		for _, name := range testPattern.FindAllString(line, -1) {
			parsed.tests = append(parsed.tests, mention{name, number})
		}
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		if fenced || strings.HasPrefix(line, "    ") {
			continue
		}
		if heading := headingLine.FindStringSubmatch(line); heading != nil {
			anchor := slug(heading[1])
			if before := seen[anchor]; before > 0 {
				parsed.anchors[fmt.Sprintf("%s-%d", anchor, before)] = true
			} else {
				parsed.anchors[anchor] = true
			}
			seen[anchor]++
		}
		for _, name := range explicitName.FindAllStringSubmatch(line, -1) {
			parsed.anchors[name[1]] = true
		}
		for _, span := range spanPattern.FindAllStringSubmatch(line, -1) {
			parsed.spans = append(parsed.spans, mention{span[1], number})
		}
		for _, link := range linkPattern.FindAllStringSubmatch(spanPattern.ReplaceAllString(line, ""), -1) {
			parsed.links = append(parsed.links, mention{link[1] + link[2], number})
		}
	}
	return parsed
}

// slug returns the anchor that GitHub gives to a heading: lower case, without
// punctuation, with a hyphen for each space.
func slug(heading string) string {
	heading = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(heading, "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		case r == ' ':
			return '-'
		}
		return -1
	}, heading)
}

// follow returns what is wrong with a link of the document called from, or nothing.
func follow(project fs.FS, documents map[string]document, from, link string) string {
	if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
		return "" // the net is not asked
	}
	target, anchor, _ := strings.Cut(link, "#")
	name := from
	if target != "" {
		name = path.Join(path.Dir(from), target)
	}
	if !exists(project, name) {
		return "there is no such file"
	}
	if anchor == "" {
		return ""
	}
	document, known := documents[name]
	if known && !document.anchors[anchor] {
		return "there is no such heading"
	}
	return ""
}

// repositoryPath returns the path in the repository that a code span names, or nothing
// if it names something else: an option, a path on a user's machine, a Go symbol.
//
// A span that begins with a directory of the repository is a path, and so is a Go file
// without a directory, which is beside the document that names it. build/ is not in the repository.
func repositoryPath(project fs.FS, document, span string) string {
	if strings.ContainsAny(span, " …*<>{}$:=") || strings.Contains(span, "vX.Y.Z") {
		return ""
	}
	span = strings.TrimPrefix(strings.TrimSuffix(span, "/"), "./")
	first, _, nested := strings.Cut(span, "/")
	switch {
	case nested && first != "" && first != "build" && directory(project, first) && path.Clean(span) == span:
		return span
	case !nested && strings.HasSuffix(span, ".go"):
		return path.Join(path.Dir(document), span)
	}
	return ""
}

// read returns the documents and the names of all Go tests in the project.
func read(project fs.FS) (documents map[string]document, tests []string, err error) {
	documents = map[string]document{}
	err = fs.WalkDir(project, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == ".git" || name == "build" || entry.Name() == "testdata"):
			return fs.SkipDir
		case strings.HasSuffix(name, ".md"):
			text, err := fs.ReadFile(project, name)
			documents[name] = parse(string(text))
			return err
		case strings.HasSuffix(name, "_test.go"):
			text, err := fs.ReadFile(project, name)
			for _, function := range goTest.FindAllStringSubmatch(string(text), -1) {
				tests = append(tests, function[1])
			}
			return err
		}
		return nil
	})
	return documents, tests, err
}

func exists(project fs.FS, name string) bool {
	_, err := fs.Stat(project, name)
	return err == nil
}

func directory(project fs.FS, name string) bool {
	info, err := fs.Stat(project, name)
	return err == nil && info.IsDir()
}
