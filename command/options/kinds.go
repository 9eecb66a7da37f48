package options

import (
	"strings"

	"github.com/urfave/cli/v2"
)

func text(section, name, value, usage string) *cli.StringFlag {
	return &cli.StringFlag{Category: section, Name: name, Value: value, Usage: usage, EnvVars: env(name)}
}

func texts(section, name, usage string) *cli.StringSliceFlag {
	return &cli.StringSliceFlag{Category: section, Name: name, Usage: usage, EnvVars: env(name)}
}

func number(section, name string, value int, usage string) *cli.IntFlag {
	return &cli.IntFlag{Category: section, Name: name, Value: value, Usage: usage, EnvVars: env(name)}
}

func yes(section, name, usage string) *cli.BoolFlag {
	return &cli.BoolFlag{Category: section, Name: name, Usage: usage, EnvVars: env(name)}
}

// env is the variable of an option: --data-dir is KARVE_DATA_DIR.
func env(name string) []string {
	return []string{"KARVE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))}
}
