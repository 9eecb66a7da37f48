package configfile

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Set returns the text of a file with other values of an option, or without it if there are none. All other lines stay, and
// so does the comment on the line of the option; comments between the old values go with them. A file in which that
// is not possible is refused.
func Set(text []byte, name string, values []string) ([]byte, error) {
	before, problems := Parse(text)
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	for _, v := range values {
		if err := CheckExpanded(v); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	named := func(o Option) bool { return o.Name == name }
	at := slices.IndexFunc(before, named)
	if slices.Equal(before.All(name), values) && (at < 0 || len(values) > 0) { // not even the form of the values changes
		return text, nil
	}
	option := Option{Line: bytes.Count(text, []byte("\n")) + 2} // a new one comes last
	if at >= 0 {
		option = before[at]
	}
	changed := replace(text, option, entry(name, values, option.comment))
	after, problems := Parse(changed)
	same := func(a, b Option) bool { return a.Name == b.Name && slices.Equal(a.Values, b.Values) }
	if len(problems) > 0 || !slices.Equal(after.All(name), values) ||
		!slices.EqualFunc(slices.DeleteFunc(before, named), slices.DeleteFunc(after, named), same) {
		return nil, fmt.Errorf("%s cannot be changed in this file without changing more than that: change it by hand, or begin a line with each option", name)
	}
	return changed, nil
}

// entry is an option as it is in a file.
func entry(name string, values []string, comment string) string {
	if len(values) == 0 {
		return ""
	}
	if comment != "" {
		comment = " " + comment
	}
	if len(values) == 1 {
		return name + ": " + quoted(values[0]) + comment + "\n"
	}
	text := name + ":" + comment + "\n"
	for _, v := range values {
		text += "- " + quoted(v) + "\n"
	}
	return text
}

// quoted is a string in YAML.
func quoted(value string) string { return "'" + strings.ReplaceAll(value, "'", "''") + "'" }

// replace puts an entry in the place of an option: its line, and those behind it that its values need. Comments and blank
// lines after them stay.
func replace(text []byte, option Option, entry string) []byte {
	lines := slices.Collect(bytes.Lines(text))
	from := min(option.Line-1, len(lines))
	to := min(from+1, len(lines))
	for ; to < len(lines); to++ {
		before, problems := Parse(bytes.Join(lines[:to], nil))
		if len(problems) == 0 && slices.Equal(before.All(option.Name), option.Values) {
			break
		}
	}
	if bytes.Contains(text, []byte("\r\n")) {
		entry = strings.ReplaceAll(entry, "\n", "\r\n")
	}
	head := bytes.Join(lines[:from], nil)
	if len(head) > 0 && !bytes.HasSuffix(head, []byte("\n")) {
		head = append(head, '\n')
	}
	return slices.Concat(head, []byte(entry), bytes.Join(lines[to:], nil))
}
