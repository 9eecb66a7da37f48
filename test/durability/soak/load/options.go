// Package load puts a mixed load on a karve server for hours, kills and restarts it now and
// then, checks after each start that everything acknowledged is there, and prints how memory,
// goroutines, files and latencies develop.
package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/karve-k8s/karve/test/durability/soak/setup"
)

type options struct {
	setup.Options
	rate       float64
	nodes      int
	kill       time.Duration
	sample     time.Duration
	warmUp     time.Duration
	durability string
}

// Run is the command soak load.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	log, remove, err := o.Open()
	if err != nil {
		return err
	}
	defer remove()
	s := newSoak(o, log, stderr)
	failed := s.run(ctx)
	report, err := s.report(log)
	if failed != nil {
		failed = fmt.Errorf("%w\nthe end of the server's log:\n%s", failed, tail(log, 20))
	}
	if err == nil {
		if failed != nil {
			report.Failure = failed.Error()
		}
		err = errors.Join(report.keep(filepath.Join(o.Dir, "report.json")), report.write(stdout))
	}
	return errors.Join(failed, err)
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{Options: setup.Options{Length: 2 * time.Hour, Compact: 2 * time.Minute}}
	flags := o.Flags("soak load", stderr)
	flags.Float64Var(&o.rate, "rate", 30, "writes a second, besides those of the controllers")
	flags.IntVar(&o.nodes, "nodes", 5, "simulated nodes")
	flags.DurationVar(&o.kill, "kill", 10*time.Minute, "how long a life lasts until the server is killed; in the second half of the time it is not killed")
	flags.DurationVar(&o.sample, "sample", 15*time.Second, "how often the server is measured")
	flags.DurationVar(&o.warmUp, "warm-up", 5*time.Minute, "how much of the beginning of each life the slopes leave out")
	flags.StringVar(&o.durability, "durability", "full", "`MODE` of the datastore; with relaxed a kill loses nothing either")
	if err := o.Parse(flags, args); err != nil {
		return o, err
	}
	if o.rate <= 0 || o.kill <= 0 || o.sample <= 0 || o.warmUp < 0 || o.nodes < 1 {
		return o, errors.New("-rate, -nodes, -kill and -sample have to be more than 0, and -warm-up not less")
	}
	return o, nil
}
