package options

import (
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// An option is a flag and what it sets. Options without set are for the commands themselves.
type option struct {
	cli.Flag
	set func(*cli.Context) error
}

// to makes an option that sets a field to its value. Without a field, only the command reads it.
func to[T any](field *T, flag cli.Flag, value func(c *cli.Context, name string) T) option {
	if field == nil {
		return option{Flag: flag}
	}
	return option{flag, func(c *cli.Context) error { *field = value(c, flag.Names()[0]); return nil }}
}

func text(field *string, section, name, value, usage string) option {
	return bound(&cli.StringFlag{Category: section, Name: name, Value: value, Usage: usage, EnvVars: env(name)}, field)
}

// bound is for a flag that other commands have, too.
func bound(flag cli.Flag, field *string) option {
	return to(field, flag, (*cli.Context).String)
}

// parsed is for a text that has to be parsed.
func parsed(o option, parse func(string) error) option {
	name := o.Names()[0]
	o.set = func(c *cli.Context) error {
		if err := parse(c.String(name)); err != nil {
			return fmt.Errorf("--%s %q: %w", name, c.String(name), err)
		}
		return nil
	}
	return o
}

func texts(field *[]string, section, name, usage string) option {
	return to(field, &cli.StringSliceFlag{Category: section, Name: name, Usage: usage, EnvVars: env(name)}, (*cli.Context).StringSlice)
}

// list is for texts that may be separated by commas.
func list(field *[]string, section, name, usage string) option {
	return to(field, texts(nil, section, name, usage).Flag, func(c *cli.Context, name string) []string { return split(c.StringSlice(name)) })
}

func number(field *int, section, name string, value int, usage string) option {
	return to(field, &cli.IntFlag{Category: section, Name: name, Value: value, Usage: usage, EnvVars: env(name)}, (*cli.Context).Int)
}

func yes(field *bool, section, name, usage string) option {
	return to(field, &cli.BoolFlag{Category: section, Name: name, Usage: usage, EnvVars: env(name)}, (*cli.Context).Bool)
}

func duration(field *time.Duration, section, name string, value time.Duration, usage string) option {
	return to(field, &cli.DurationFlag{Category: section, Name: name, Value: value, Usage: usage, EnvVars: env(name)}, (*cli.Context).Duration)
}

// env is the variable of an option: --data-dir is KARVE_DATA_DIR.
func env(name string) []string {
	return []string{"KARVE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))}
}

// split takes a,b and repeated options alike.
func split(values []string) []string {
	var all []string
	for _, v := range values {
		for item := range strings.SplitSeq(v, ",") {
			if item = strings.TrimSpace(item); item != "" {
				all = append(all, item)
			}
		}
	}
	return all
}
