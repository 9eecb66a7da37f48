package output

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/karve-k8s/karve/internal/shell"
)

// Printable returns text as it is if a terminal shows all of it, and otherwise quoted, as a Go
// string. Names and answers of other users' servers could otherwise control root's terminal.
func Printable(text string) string {
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

// SetVariable returns the command by which the user's shell sets an environment variable. On Windows
// that is PowerShell.
func SetVariable(system, name, value string) string {
	if system == "windows" {
		return "$env:" + name + " = '" + strings.ReplaceAll(value, "'", "''") + "'"
	}
	return "export " + name + "=" + shell.Quoted(value)
}
