// Command watchsoak holds client-go's informers of every type at a karve server that
// compacts often, while only ConfigMaps change, and fails if one of them has to list
// again: see scripts/watch-soak.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

type options struct {
	binary  string
	dir     string
	length  time.Duration
	compact time.Duration
	renew   time.Duration
	rate    float64
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "watchsoak:", err)
		}
		os.Exit(1)
	}
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("watchsoak", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.binary, "karve", "", "`BINARY` to run")
	flags.StringVar(&o.dir, "dir", "", "empty `DIRECTORY` for the cluster and its log, which stay there (default: a temporary one)")
	flags.DurationVar(&o.length, "for", 30*time.Minute, "how long the watches are held")
	flags.DurationVar(&o.compact, "compact", time.Minute, "how often the API server compacts")
	flags.DurationVar(&o.renew, "renew", 90*time.Second, "how long a watch lasts until its client renews it; 0 is client-go's five to ten minutes")
	flags.Float64Var(&o.rate, "rate", 20, "writes a second, all of ConfigMaps")
	if err := flags.Parse(args); err != nil {
		return o, flag.ErrHelp
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.binary == "":
		return o, errors.New("-karve is missing: the binary to run")
	case o.length <= 0 || o.compact <= 0 || o.rate <= 0 || o.renew < 0:
		return o, errors.New("-for, -compact and -rate have to be more than 0, and -renew not less")
	case o.length < 3*o.compact:
		return o, fmt.Errorf("-for %v: want three times -compact, %v, at least: the API server compacts to where it was one interval ago", o.length, o.compact)
	}
	if o.binary, err = filepath.Abs(o.binary); err != nil {
		return o, err
	}
	_, err = exec.LookPath(o.binary)
	return o, err
}
