package engine

import (
	"flag"
	"fmt"
	"io"

	"github.com/karve-k8s/karve/test/bench/report"
)

// options are those of both commands.
type options struct {
	report.Output
	flags *flag.FlagSet
	quick bool
	dir   string
}

// newOptions defines the options of a command. quick says what -quick does.
func newOptions(name, quick string, stderr io.Writer) *options {
	o := &options{flags: flag.NewFlagSet(name, flag.ContinueOnError)}
	o.flags.SetOutput(stderr)
	o.Register(o.flags)
	o.flags.BoolVar(&o.quick, "quick", false, quick)
	o.flags.StringVar(&o.dir, "dir", "", "directory on the disk to measure (default: the one for temporary files)")
	return o
}

// parse parses the options and checks the output.
func (o *options) parse(args []string) error {
	if err := o.flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	if o.flags.NArg() > 0 {
		return fmt.Errorf("%s takes no argument %q", o.flags.Name(), o.flags.Arg(0))
	}
	return o.Check()
}
