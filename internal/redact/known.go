package redact

import (
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// hidden stands for a password in messages.
const hidden = "xxxxx"

// Credentials of any URL, and parameters with a password of any URL, DSN or list of settings. They mask what a
// driver makes of an endpoint without quoting it.
var (
	urlCredentials     = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://[^\s/@:?#]*):[^\s/@]*@`)
	passwordParameters = regexp.MustCompile("(?i)\\b((?:ssl)?password=)[^\\s&'\"`]+")
)

// Known hides secrets where a text has them as credentials: between the user and the host, and as the value of a
// parameter. A secret that is a part of another word stays, because a password such as "tcp" or the name of the
// host is also a part of messages that people need.
func Known(text string, secrets []string) string {
	if known := spellings(secrets); known != "" {
		text = regexp.MustCompile(`(:|//)(?:`+known+`)@`).ReplaceAllString(text, "${1}"+hidden+"@")
		text = regexp.MustCompile(`(?i)((?:password|passwd|pwd|pass|token)\s*[=:]\s*['"]?)(?:`+known+`)`).ReplaceAllString(text, "${1}"+hidden)
	}
	text = urlCredentials.ReplaceAllString(text, "${1}:"+hidden+"@")
	return passwordParameters.ReplaceAllString(text, "${1}"+hidden)
}

// AtAfterHost tells whether there is an at sign after the host of a URL without its scheme. It is that of a password with a
// slash, a question mark or a number sign, whose begin was taken for a port: a parser sees no password there.
func AtAfterHost(rest string) bool {
	host := strings.IndexAny(rest, "/?#")
	return host >= 0 && strings.Contains(rest[host:], "@")
}

// spellings is a pattern of all forms in which the secrets may be written: as they are, encoded for a URL and
// quoted. The longest comes first, because one may be the beginning of another.
func spellings(secrets []string) string {
	var forms []string
	for _, secret := range secrets {
		if secret == "" {
			continue
		}
		quoted := strconv.Quote(secret)
		userinfo := url.UserPassword("", secret).String()
		forms = append(forms, secret, quoted[1:len(quoted)-1], userinfo[1:], url.QueryEscape(secret), url.PathEscape(secret))
	}
	slices.SortFunc(forms, func(a, b string) int { return len(b) - len(a) })
	for i, form := range forms {
		forms[i] = regexp.QuoteMeta(form)
	}
	return strings.Join(forms, "|")
}

// URLs joins URLs, without their passwords and parameters, which may be passwords, too.
func URLs(endpoints []string) string {
	var safe []string
	for _, endpoint := range endpoints {
		if u, err := url.Parse(endpoint); err == nil {
			safe = append(safe, (&url.URL{Scheme: u.Scheme, User: u.User, Host: u.Host, Path: u.Path}).Redacted())
		}
	}
	return strings.Join(safe, ", ")
}

// quoted begins a value that upstream's server-side apply quotes. It has no end that can be recognised.
var quoted = regexp.MustCompile(`(?s)(expected (?:list|map|string|boolean|any scalar), got ).*`)

// WithoutValue removes the value of an object from an error about its type: it may be that of a Secret.
func WithoutValue(text string) string {
	if !strings.Contains(text, ", got ") {
		return text
	}
	return quoted.ReplaceAllString(text, "$1…")
}
