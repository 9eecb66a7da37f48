package report

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/karve-k8s/karve/test/bench/machine"
)

// An Output says which file gets the figures that are printed.
type Output struct {
	File string // gets a Record; empty: none
}

// Register adds the option -record.
func (o *Output) Register(flags *flag.FlagSet) {
	flags.StringVar(&o.File, "record", "", "`FILE` that gets every figure in Go's benchmark format, for benchstat")
}

// Check returns an error for an output that is not possible, before anything is measured.
func (o *Output) Check() error {
	if o.File == "" {
		return nil
	}
	info, err := os.Stat(filepath.Dir(o.File))
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory", filepath.Dir(o.File))
	}
	if err != nil {
		return fmt.Errorf("-record: %w", err)
	}
	return nil
}

// A Reporter has figures to print.
type Reporter interface {
	Print(w io.Writer) error
	Record() *Record
}

// Write prints the figures and writes the file, if there is one.
func (o *Output) Write(stdout io.Writer, r Reporter) error {
	if o.File != "" {
		var text strings.Builder
		if err := r.Record().Write(&text); err != nil {
			return err
		}
		if err := os.WriteFile(o.File, []byte(text.String()), 0o644); err != nil {
			return fmt.Errorf("-record: %w", err)
		}
	}
	return r.Print(stdout)
}

// NewRecord returns an empty record of a command, with remarks on the run. args are the options of
// the command.
func NewRecord(command, described string, args []string, otherLoad float64) *Record {
	name := strings.ToUpper(command[:1]) + command[1:]
	if command == "api" {
		name = "API"
	}
	r := &Record{Benchmark: name, CPU: machine.Processor()}
	r.Remark("command", "scripts/bench "+strings.Join(append([]string{command}, args...), " "))
	r.Remark("date", time.Now().UTC().Format(time.DateOnly))
	r.Remark("machine", described)
	if otherLoad > Quiet {
		r.Remark("disturbed", fmt.Sprintf("other processes used up to %.0f %% of the machine", 100*otherLoad))
	}
	return r
}
