package logbridge

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/go-logr/logr"
	"github.com/sirupsen/logrus"
)

// missing is the value of a key without a value, as in klog.
const missing = "(MISSING)"

// key turns a name into one that can be written without quotes. Errors get the name that they
// have in Karve's own lines.
func key(name string) string {
	if name == "err" {
		return logrus.ErrorKey
	}
	if name == "" {
		return "_"
	}
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r == '=' || r == '"' || !unicode.IsPrint(r) {
			return '_'
		}
		return r
	}, name)
}

// plain turns a value into one that every formatter can write on one line: a boolean, a number
// or a string. It follows klog (internal/serialize/keyvalues.go), and recovers when a value
// panics.
func plain(v any) any {
	switch v := v.(type) {
	case nil:
		return "<nil>"
	case string, bool,
		int, int8, int16, int32, int64,
		uint, uint8, uint16, uint32, uint64, uintptr:
		return v
	case float32:
		return strconv.FormatFloat(float64(v), 'g', -1, 32) // JSON has no NaN
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case []byte:
		return string(v)
	}
	return text(v)
}

// text returns any value as a string.
func text(v any) (s string) {
	defer func() {
		if r := recover(); r != nil {
			s = fmt.Sprintf("<panic: %v>", r) // usually a nil pointer in an interface
		}
	}()
	switch v := v.(type) {
	case error:
		return v.Error()
	case fmt.Stringer: // before Marshaler: "namespace/name" rather than two fields
		return v.String()
	case logr.Marshaler:
		return fmt.Sprint(plain(v.MarshalLog()))
	}
	if b, err := json.Marshal(v); err == nil {
		return string(b)
	}
	return fmt.Sprintf("%+v", v)
}

// unquote takes back what strconv.Quote escapes without need.
var unquote = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\t`, " ")

// oneLine escapes characters that end the line or control the terminal.
func oneLine(s string) string {
	quoted := strconv.Quote(s)
	return unquote.Replace(quoted[1 : len(quoted)-1])
}
