// Package quote makes texts of strangers, such as nodes, fit for messages.
package quote

import (
	"fmt"
	"strconv"
	"strings"
)

// mostBytes and mostTexts are how much of a text, and how many texts, a message has.
const (
	mostBytes = 60
	mostTexts = 3
)

// Text quotes text, without what is too long.
func Text(text string) string {
	if len(text) > mostBytes {
		return strconv.QuoteToASCII(text[:mostBytes]) + "…"
	}
	return strconv.QuoteToASCII(text)
}

// First joins the first of texts, and says how many more there are.
func First(texts []string, separator string) string {
	if more := len(texts) - mostTexts; more > 0 {
		return fmt.Sprintf("%s%sand %d more", strings.Join(texts[:mostTexts], separator), separator, more)
	}
	return strings.Join(texts, separator)
}
