// Command soak puts a mixed load on a karve server for hours, and prints how memory, goroutines and
// files develop. See scripts/soak.
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
	binary  string        // an absolute path after parse
	dir     string        // holds the cluster and its log; empty: a temporary one
	length  time.Duration // of the soak
	compact time.Duration // how often the API server compacts
	sample  time.Duration
	warmUp  time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "soak:", err)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "karve-soak-"); err != nil {
			return err
		}
		defer os.RemoveAll(o.dir)
	} else if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(o.dir, "server.log"), os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s := newSoak(o, log, stderr)
	failed := s.run(ctx)
	if failed != nil {
		failed = fmt.Errorf("%w\nthe end of the server's log:\n%s", failed, tail(log, 20))
	}
	return errors.Join(failed, s.report(stdout, log))
}

// parse returns flag.ErrHelp if the flag set has printed what is wrong.
func parse(args []string, stderr io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.binary, "karve", "", "`BINARY` to run")
	flags.StringVar(&o.dir, "dir", "", "empty `DIRECTORY` for the cluster and its log, which stay there (default: a temporary one)")
	flags.DurationVar(&o.length, "for", 2*time.Hour, "how long the soak lasts")
	flags.DurationVar(&o.compact, "compact", 2*time.Minute, "how often the API server compacts")
	flags.DurationVar(&o.sample, "sample", 15*time.Second, "how often the server is measured")
	flags.DurationVar(&o.warmUp, "warm-up", 5*time.Minute, "how much of the beginning the figures leave out")
	if err := flags.Parse(args); err != nil {
		return o, flag.ErrHelp
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.binary == "":
		return o, errors.New("-karve is missing: the binary to run")
	case o.length <= 0 || o.compact <= 0 || o.sample <= 0 || o.warmUp < 0:
		return o, errors.New("-for, -compact and -sample have to be more than 0, and -warm-up not less")
	}
	if o.binary, err = filepath.Abs(o.binary); err != nil {
		return o, err
	}
	_, err = exec.LookPath(o.binary)
	return o, err
}
