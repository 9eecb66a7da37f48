// Package redact replaces secrets in texts: what looks like one in a text that leaves the machine, known ones in an error,
// and values of objects.
package redact

import (
	"regexp"
	"slices"
	"strings"
)

const (
	Mark = "[redacted]" // stands in place of a secret
	Set  = "(set)"      // stands in place of a value that nobody wrote into the text
)

// naming is a name whose value is a secret. Names that end with a short one are not words such as bypass.
const naming = `(?:[\w.-]*(?:passw(?:or)?d|passphrase|secret|token|credential|api[_-]?key|access[_-]?key|private[_-]?key|key-data|authorization|cookie|datastore[_-]endpoint|migrate[_-](?:from|to))[\w.-]*` +
	`|\b(?:[\w.-]*[_.-])?(?:pass|pwd|auth))`

// escaped is a quotation mark within a quoted text (of a log, of JSON) or of HTML.
const escaped = `(?:\\+["']|\\*&#3[49];)`

var (
	// A password in a URL ends at the last @, since those of MySQL need no escapes.
	inURL = regexp.MustCompile(`([a-zA-Z][\w+.-]*://)([^\s"'<>@]*)(:)([^\s"'<>]*)@|([a-zA-Z][\w+.-]*://)[^\s"'<>]*@`)
	// A data source name of Go's driver for MySQL.
	inDSN = regexp.MustCompile(`([\w.-]+:)[^\s"'<>]*(@(?:tcp6?|unix)\()`)
	// The lines of a YAML block, also with escaped ends of lines. Nothing tells where a nested one ends, so the lines after it go, too.
	block = regexp.MustCompile(`(?i)(` + naming + `["']?:[ \t]*[|>][-+0-9]*)(?:(?:\r?\n|\\+n)(?:[ \t]+[^\n\\"]*)?)+`)
	named = regexp.MustCompile(`(?i)(--` + naming + `[ \n]+|` + naming + `(?:["']|` + escaped + `)?\s*[:=]\s*)` +
		`("(?:[^"\\]|\\.)*"|'[^']*'|` + escaped + `.*?` + escaped + `|[^\s"'<]+)`)
	// A value without quotes ends where another name begins, or with the punctuation of the sentence.
	ending = regexp.MustCompile(`[,;&](?:amp;)?[\w.\[\]-]+[:=]|[,;&)}\]]+$`)
	count  = regexp.MustCompile(`^\d+$`) // of secrets

	shapes = []*regexp.Regexp{
		regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`),
		regexp.MustCompile(`\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*`),                                                                                 // a JSON web token
		regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`),                                                                                  // a bootstrap token
		regexp.MustCompile(`AGE-SECRET-KEY-1\w+`),                                                                                            // an identity of age
		regexp.MustCompile(`(?i)\b(?:bearer|basic)\s+(?:[\w.~+/-]|&#43;){8,}=*`),                                                             // a header
		regexp.MustCompile(`(?i)\b(?:set-)?cookie:[^\r\n"<\\]*`),                                                                             // several in one header
		regexp.MustCompile(`(?i)\bauthorization:\s*(?:digest|negotiate|ntlm)\b[^\r\n<]*`),                                                    // other headers
		regexp.MustCompile(`\b(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-)[\w-]{10,}`),                                                      // GitHub, GitLab, Slack
		regexp.MustCompile(`\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`),                                                                                  // AWS
		regexp.MustCompile(`(?i)https://(?:hooks\.slack\.com|discord(?:app)?\.com/api/webhooks|[\w.-]+\.webhook\.office\.com)/[^\s"'<>\\]+`), // whose path is the secret
		regexp.MustCompile(`expected (?:list|map|string|boolean|any scalar), got [^\n]*`),                                                    // a value of a Secret, in the logs of earlier releases
		regexp.MustCompile(`\bLS0tLS1CRUdJTi[\w+/]{20,}=*`),                                                                                  // PEM in base64
	}
)

// Text replaces them in a text.
func Text(text []byte) []byte {
	for _, shape := range shapes {
		text = shape.ReplaceAllLiteral(text, []byte(Mark))
	}
	text = inURL.ReplaceAll(text, []byte("${1}${5}"+Mark+"@"))
	text = inDSN.ReplaceAll(text, []byte("${1}"+Mark+"${2}"))
	text = block.ReplaceAll(text, []byte("${1} "+Mark+"\n"))
	return named.ReplaceAllFunc(text, func(found []byte) []byte {
		m := named.FindSubmatch(found)
		name := strings.ToLower(strings.TrimRight(string(m[1]), " \n:=\"'"))
		switch {
		case strings.HasSuffix(name, "s") && count.Match(m[2]):
			return found
		case strings.HasSuffix(name, "file"), strings.HasSuffix(name, ".go"), strings.ContainsAny(string(m[2][:1]), "{["), string(m[2]) == Set:
			return found
		}
		if at := ending.FindIndex(m[2]); at != nil && at[0] > 0 {
			return slices.Concat(m[1], []byte(Mark), Text(m[2][at[0]:]))
		}
		return append(slices.Clone(m[1]), Mark...)
	})
}
