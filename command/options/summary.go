package options

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/internal/redact"
)

// Summary are the options in the configuration file, for others to read. Only values that are booleans, numbers or durations
// are shown: a secret could be in any other.
func Summary(c *cli.Context) ([]byte, error) {
	path, values, err := loadConfig(c, DefaultFile)
	if err != nil {
		return nil, err
	}
	if path == "" {
		return nil, errors.New("there is no configuration file, and options in arguments and variables are not collected")
	}
	known := Names(Server())
	text := fmt.Appendf(nil, "# %s, without values that could be secret\n", path)
	for _, v := range values {
		for _, value := range v.Values {
			name := v.Name
			if arg, rest, found := strings.Cut(value, "="); found && strings.HasSuffix(name, "-arg") { // of a component of Kubernetes
				name, value = name+": "+arg, rest
			}
			if !slices.Contains(known, v.Name) || !open(value) {
				value = redact.Set
			}
			text = fmt.Appendf(text, "%s: %s\n", name, value)
		}
	}
	return text, nil
}

// open reports whether a value is a boolean, a number or a duration.
func open(value string) bool {
	_, notBool := strconv.ParseBool(value)
	_, notNumber := strconv.ParseFloat(value, 64)
	_, notDuration := time.ParseDuration(value)
	return notBool == nil || notNumber == nil || notDuration == nil
}
