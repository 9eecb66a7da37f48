package options

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"
)

// Help is the help text of a command with the options of a server: what it is
// for, then the options by section, in the order of Server. cli's own
// template sorts the sections by name and has one line for each option, however
// much upstream has to say about it.
func Help(list []cli.Flag, purpose string) string {
	var b strings.Builder
	b.WriteString(purpose + "\n" +
		"Every option can be given as --name VALUE, as a variable KARVE_NAME, and as\n" +
		"name: value in the file of --config; the first of these that is there counts.\n" +
		"A variable that is nearly the name of an option is an error. Any other KARVE_…\n" +
		"that sets nothing is a warning, but for those of install.sh and of Services.\n")
	var sections []string
	bySection := map[string][]cli.Flag{}
	for _, f := range list {
		section := f.(cli.CategorizableFlag).GetCategory()
		if bySection[section] == nil {
			sections = append(sections, section)
		}
		bySection[section] = append(bySection[section], f)
	}
	for _, section := range sections {
		fmt.Fprintf(&b, "\n%s\n", section)
		for _, f := range bySection[section] {
			writeHelp(&b, f.(cli.DocGenerationFlag))
		}
	}
	// The template language must not see what upstream writes in its usages.
	return "{{print " + strconv.Quote(b.String()) + "}}"
}

// writeHelp writes an option and what it means, wrapped.
func writeHelp(w io.Writer, f cli.DocGenerationFlag) {
	const width, indent = 78, "      "
	placeholder, usage := placeholderOf(f.GetUsage())
	fmt.Fprintln(w, strings.TrimRight("  --"+f.Names()[0]+" "+placeholder, " "))
	if value := f.GetDefaultText(); f.TakesValue() && value != "" && value != `""` && !strings.Contains(usage, "(default: ") {
		usage += " (default: " + strings.Trim(value, `"`) + ")"
	}
	line := indent
	for word := range strings.FieldsSeq(usage) {
		if len(line)+len(word) > width && line != indent {
			fmt.Fprintln(w, strings.TrimRight(line, " "))
			line = indent
		}
		line += word + " "
	}
	fmt.Fprintln(w, strings.TrimRight(line, " "))
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
