package options

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// The widths of help texts: of those in two columns, whose second one begins at helpColumn, and of
// paragraphs.
const (
	tableWidth = 100
	helpColumn = 32
	textWidth  = 80
)

// Purpose is a command whose help [WriteHelp] writes.
type Purpose struct {
	Name     string         // with those above it: "karve certs list"
	Usage    string         // what it does, in a sentence
	Args     string         // what it takes beside options
	Notes    string         // more, in paragraphs
	Commands []*cli.Command // those below it
	Options  []cli.Flag
}

// HasMore tells whether the command has options that only --help --all shows.
func (p Purpose) HasMore() bool {
	return slices.ContainsFunc(p.Options, func(f cli.Flag) bool { return !mostUsed(f) })
}

// WriteHelp writes the help of a command. Of the options of a server it shows those that
// most users need, and the others only if all is set.
func WriteHelp(w io.Writer, p Purpose, all bool) {
	line := "Usage: " + p.Name
	switch {
	case len(p.Commands) > 0:
		line += " COMMAND [OPTION...]"
	case len(p.Options) > 0:
		line += " [OPTION...]"
	}
	fmt.Fprintln(w, strings.TrimSpace(line+" "+p.Args))
	fmt.Fprintln(w, "\n"+wrapped(sentence(p.Usage), "", textWidth))
	if p.Notes != "" {
		fmt.Fprintln(w, "\n"+strings.TrimSpace(p.Notes))
	}
	writeCommands(w, p.Commands)

	options := slices.DeleteFunc(slices.Clone(p.Options), func(f cli.Flag) bool { return !all && !mostUsed(f) })
	for _, section := range sections(options) {
		fmt.Fprintf(w, "\n%s\n", section)
		for _, f := range options {
			if sectionOf(f) != section {
				continue
			}
			if all {
				writeWhole(w, f.(cli.DocGenerationFlag))
			} else {
				writeShort(w, f.(cli.DocGenerationFlag))
			}
		}
	}
	if left := len(p.Options) - len(options); left > 0 {
		fmt.Fprintf(w, "\n%s --help --all explains these options in full, and shows %d more.\n", p.Name, left)
	}
}

// writeCommands lists commands by category, in the order of their first ones.
func writeCommands(w io.Writer, commands []*cli.Command) {
	var categories []string
	for _, c := range commands {
		if !c.Hidden && !slices.Contains(categories, c.Category) {
			categories = append(categories, c.Category)
		}
	}
	width := 0
	for _, c := range commands {
		width = max(width, len(c.Name)+4)
	}
	for _, category := range categories {
		title := category
		if title == "" {
			title = "COMMANDS"
		}
		fmt.Fprintf(w, "\n%s\n", title)
		for _, c := range commands {
			if !c.Hidden && c.Category == category {
				writeColumns(w, "  "+c.Name, c.Usage, width)
			}
		}
	}
}

// otherSection is that of options that belong to no section of a server's.
const otherSection = "OPTIONS"

func sectionOf(f cli.Flag) string {
	if c, ok := f.(cli.CategorizableFlag); ok && c.GetCategory() != "" {
		return c.GetCategory()
	}
	return otherSection
}

// sections are those of the options: the command's own first, then a server's in their order.
func sections(options []cli.Flag) []string {
	var all []string
	for _, f := range options {
		if s := sectionOf(f); !slices.Contains(all, s) {
			if s == otherSection {
				all = slices.Insert(all, 0, s)
			} else {
				all = append(all, s)
			}
		}
	}
	return all
}

// writeShort writes an option and the first sentence of what it means, in two columns.
func writeShort(w io.Writer, f cli.DocGenerationFlag) {
	name, usage := describe(f)
	if short, ok := shortUsages[f.Names()[0]]; ok {
		usage = short
	}
	usage, _, _ = strings.Cut(usage, ". ")
	writeColumns(w, "  "+name, strings.TrimSuffix(usage, ".")+defaultOf(f, usage), helpColumn)
}

// writeWhole writes an option, and all that it means below it.
func writeWhole(w io.Writer, f cli.DocGenerationFlag) {
	name, usage := describe(f)
	fmt.Fprintln(w, "  "+name)
	for line := range strings.SplitSeq(usage+defaultOf(f, usage), "\n") { // upstream's lists have a line for each item
		fmt.Fprintln(w, wrapped(line, "      ", textWidth))
	}
}

// describe is an option as one writes it, and its usage without backquotes.
func describe(f cli.DocGenerationFlag) (name, usage string) {
	placeholder, usage := placeholderOf(f.GetUsage())
	name = "--" + f.Names()[0]
	for _, alias := range f.Names()[1:] {
		if len(alias) == 1 {
			name = "-" + alias + ", " + name
		}
	}
	return strings.TrimSpace(name + " " + placeholder), usage
}

// defaultOf is the note on an option's default, unless its usage has one.
func defaultOf(f cli.DocGenerationFlag, usage string) string {
	value := strings.Trim(f.GetDefaultText(), `"`)
	if !f.TakesValue() || value == "" || value == "0" || value == "0s" || strings.Contains(usage, "(default: ") {
		return ""
	}
	return " (default: " + value + ")"
}

// writeColumns writes text from a column on, below the name if that is too long.
func writeColumns(w io.Writer, name, text string, column int) {
	indent := strings.Repeat(" ", column)
	lines := wrapped(text, indent, tableWidth)
	if len(name)+2 > column {
		fmt.Fprintln(w, name)
	} else {
		lines = name + lines[len(name):]
	}
	fmt.Fprintln(w, strings.TrimRight(lines, " "))
}

// wrapped is text in lines of at most width characters, if its words let it, after indent.
func wrapped(text, indent string, width int) string {
	var lines []string
	line := indent
	for word := range strings.FieldsSeq(text) {
		if len(line)+len(word) > width && line != indent {
			lines = append(lines, strings.TrimRight(line, " "))
			line = indent
		}
		line += word + " "
	}
	return strings.Join(append(lines, strings.TrimRight(line, " ")), "\n")
}

// sentence is a usage of cli's, which begins with a small letter, as a sentence.
func sentence(usage string) string {
	if usage == "" {
		return ""
	}
	usage = strings.ToUpper(usage[:1]) + usage[1:]
	if strings.HasSuffix(usage, ".") {
		return usage
	}
	return usage + "."
}

// placeholderOf reads the `NAME` of the value out of a usage, as cli does.
func placeholderOf(usage string) (placeholder, rest string) {
	before, after, ok := strings.Cut(usage, "`")
	name, after, closed := strings.Cut(after, "`")
	if !ok || !closed {
		return "", usage
	}
	if rest, ok := strings.CutPrefix(after, ": "); ok && before == "" {
		return name, rest
	}
	return name, before + name + after
}
