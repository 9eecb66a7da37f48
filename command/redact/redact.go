// Package redact replaces secrets in texts that leave the machine: those that are known, wherever they stand, and what
// looks like one.
package redact

import (
	"bytes"
	"cmp"
	"encoding/json"
	"html"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Mark stands in place of a secret.
const Mark = "[redacted]"

const (
	shortest  = 6       // characters: a secret with fewer is not looked for, because other words contain it
	fileLimit = 1 << 20 // bytes
)

// naming is a name whose value is a secret.
const naming = `[\w.-]*(?:passw(?:or)?d|passphrase|secret|token|credential|api[_-]?key|private[_-]?key|key-data|authorization|cookie|datastore[_-]endpoint|migrate[_-](?:from|to))[\w.-]*`

// escaped is a quotation mark within a quoted text (of a log, of JSON) or of HTML.
const escaped = `(?:\\+["']|\\*&#3[49];)`

var (
	// A password in a URL ends at the last @, since those of MySQL need no escapes.
	inURL = regexp.MustCompile(`([a-zA-Z][\w+.-]*://)([^\s"'<>@]*)(:)([^\s"'<>]*)@|([a-zA-Z][\w+.-]*://)[^\s"'<>]*@`)
	named = regexp.MustCompile(`(?i)(--` + naming + `[ \n]+|` + naming + `(?:["']|` + escaped + `)?\s*[:=]\s*)` +
		`("(?:[^"\\]|\\.)*"|'[^']*'|` + escaped + `.*?` + escaped + `|[^\s"'<]+)`)
	// A value without quotes ends where another name begins, or with the punctuation of the sentence.
	ending = regexp.MustCompile(`[,;&](?:amp;)?[\w.\[\]-]+[:=]|[,;&)}\]]+$`)
	// The value of an option of YAML goes on in the lines that are indented.
	ofLine  = regexp.MustCompile(`(?im)^(.*?` + naming + `["']?[ \t]*[:=]|--` + naming + `\n)(.*)((?:\n(?:[ \t]*\n)*[ \t]+\S.*)*)$`)
	option  = regexp.MustCompile(`(?im)^[\s#-]*(?:KARVE_|--)?([\w-]+)["']?\s*[:=\n]\s*["']?([^\s"']+)`)
	inYAML  = regexp.MustCompile(`(?m)\b(?:secret|key-data|token|password)["']?:\s*["']?([^\s"'{}\[\],]+)`)
	isYAML  = regexp.MustCompile(`\bkind["']?:`) // or JSON
	count   = regexp.MustCompile(`^\d+$`)        // of secrets
	hasFile = regexp.MustCompile(`(?i)(token|key|secret|encryption|passw)`)

	shapes = []*regexp.Regexp{
		regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`),
		regexp.MustCompile(`\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*`),                              // a JSON web token
		regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`),                               // a bootstrap token
		regexp.MustCompile(`AGE-SECRET-KEY-1\w+`),                                         // an identity of age
		regexp.MustCompile(`(?i)\b(?:bearer|basic)\s+(?:[\w.~+/-]|&#43;){8,}=*`),          // a header
		regexp.MustCompile(`expected (?:list|map|string|boolean|any scalar), got [^\n]*`), // a value of a Secret, in the logs of earlier releases
		regexp.MustCompile(`\bLS0tLS1CRUdJTi[\w+/]{20,}=*`),                               // PEM in base64
	}
)

// Secrets are secrets that are known. The zero value knows none.
type Secrets struct {
	known []string // in all their forms, the longest first: one may be the beginning of another
}

func (s *Secrets) add(secret string) {
	if len(secret) < shortest {
		return
	}
	for _, form := range forms(secret) {
		if !slices.Contains(s.known, form) {
			s.known = append(s.known, form)
		}
	}
	slices.SortFunc(s.known, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
}

// Learn finds passwords in the URLs of a configuration, a command line or an environment, and reads the files that
// options with secrets name.
func (s *Secrets) Learn(text []byte) {
	for _, m := range inURL.FindAllSubmatch(text, -1) {
		s.add(string(m[4]))
		if password, err := url.PathUnescape(string(m[4])); err == nil {
			s.add(password)
		}
	}
	for _, m := range option.FindAllSubmatch(text, -1) {
		if hasFile.Match(m[1]) && bytes.HasPrefix(m[2], []byte("/")) {
			s.LearnFiles(string(m[2]))
		}
	}
}

// LearnFiles reads files that have secrets: keys, tokens with or without more fields, kubeconfigs, and configurations of
// encryption. What cannot be read is not known.
func (s *Secrets) LearnFiles(paths ...string) {
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() || info.Size() > fileLimit {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if isYAML.Match(text) { // its other words are none
			for _, m := range inYAML.FindAllSubmatch(text, -1) {
				s.add(string(m[1]))
			}
			continue
		}
		for line := range strings.Lines(string(text)) {
			secret, _, _ := strings.Cut(strings.TrimSpace(line), ",")
			if !strings.HasPrefix(secret, "-----") {
				s.add(strings.Trim(secret, `"`)) // of CSV
			}
		}
	}
}

// forms returns a secret as it stands in logs, JSON, HTML and URLs, and in one of these within another.
func forms(secret string) []string {
	all := []string{secret}
	for range 2 {
		for _, form := range all {
			text, _ := json.Marshal(form) // a string cannot fail
			quoted := strconv.Quote(form)
			for _, other := range []string{
				string(text[1 : len(text)-1]), quoted[1 : len(quoted)-1], url.QueryEscape(form), url.PathEscape(form),
				strings.ReplaceAll(html.EscapeString(form), "+", "&#43;"), // as html/template
			} {
				if !slices.Contains(all, other) {
					all = append(all, other)
				}
			}
		}
	}
	return all
}

// Redact replaces the secrets in a text.
func (s *Secrets) Redact(text []byte) []byte {
	for _, secret := range s.known {
		text = bytes.ReplaceAll(text, []byte(secret), []byte(Mark))
	}
	for _, shape := range shapes {
		text = shape.ReplaceAllLiteral(text, []byte(Mark))
	}
	text = inURL.ReplaceAll(text, []byte("${1}${5}"+Mark+"@"))
	return named.ReplaceAllFunc(text, func(found []byte) []byte {
		m := named.FindSubmatch(found)
		name := strings.ToLower(strings.TrimRight(string(m[1]), " \n:=\"'"))
		switch {
		case strings.HasSuffix(name, "s") && count.Match(m[2]):
			return found
		case strings.HasSuffix(name, "file"), strings.HasSuffix(name, ".go"), strings.ContainsAny(string(m[2][:1]), "{["):
			return found
		}
		if at := ending.FindIndex(m[2]); at != nil && at[0] > 0 {
			return slices.Concat(m[1], []byte(Mark), s.Redact(m[2][at[0]:]))
		}
		return append(slices.Clone(m[1]), Mark...)
	})
}

// Config replaces the values of options that have secrets, up to their ends: in a configuration file, an environment, or a
// command line with an argument in each line. Redact does the rest.
func Config(text []byte) []byte {
	return ofLine.ReplaceAllFunc(text, func(found []byte) []byte {
		m := ofLine.FindSubmatch(found)
		switch {
		case strings.HasSuffix(strings.ToLower(strings.TrimRight(string(m[1]), " :=\"'\n\t")), "file"):
			return slices.Concat(m[1], m[2], Config(m[3]))
		case len(bytes.TrimSpace(found[len(m[1]):])) == 0:
			return found
		}
		return append(slices.Clone(m[1]), Mark...)
	})
}
