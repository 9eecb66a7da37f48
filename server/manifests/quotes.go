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

// withoutQuotes is an error of the API for logs and the status, without the values that it quotes.
func withoutQuotes(err error) string {
	return redact.WithoutValue(err.Error())
}
