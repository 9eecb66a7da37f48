package manifests

import (
	"errors"
	"regexp"

	"github.com/karve-k8s/karve/internal/redact"
)

// Parsers quote what they cannot read, which may be a Secret.
var (
	quotedString = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	// parserSays is what an error of a parser may say: known words up to the first quotation, unless that is a single character.
	parserSays = regexp.MustCompile("^(?:yaml: |invalid character |unexpected )(?:'[^']'|[^'\"`\\[{])*")
	// kustomizeQuotes begins what errors of kustomize quote. The end is not marked.
	kustomizeQuotes = regexp.MustCompile(`(?s)(?:literal sources \[|with config: ` + "`" + `|line \[[0-9 ]+\] has invalid utf8|` +
		`anchor '|cannot (?:decode|unmarshal) (?:!!|number )|invalid map key|[Uu]nsupported map key|key "|invalid character ).*`)
)

// unquoted is an error of a parser without what it quotes.
func unquoted(err error) error {
	if err == nil {
		return nil
	}
	text := quotedString.ReplaceAllString(err.Error(), "…")
	says := parserSays.FindString(text)
	switch {
	case says == "":
		return errors.New("it is no valid YAML or JSON")
	case says != text:
		says += "…"
	}
	return errors.New(says)
}

// withoutQuotes is an error of kustomize or of the API for logs and the status, up to what it quotes.
func withoutQuotes(err error) string {
	return kustomizeQuotes.ReplaceAllString(redact.WithoutValue(err.Error()), "…")
}
