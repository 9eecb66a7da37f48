// Package setup has what every soak begins with: the options that all of them have, and
// the directory with the cluster and the server's log.
package setup

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Options are those of every soak. Length and Compact hold the defaults until Parse.
type Options struct {
	Binary  string        // the karve to run, an absolute path after Parse
	Dir     string        // holds the cluster and its log; empty until Open: a temporary one
	Length  time.Duration // how long the soak lasts
	Compact time.Duration // how often the API server compacts
}

// CompactedLines are what a server logs about a watch that has fallen behind compaction.
var CompactedLines = []string{"required revision has been compacted", "watch chan error"}

// Flags returns a flag set with the options. The caller adds those of its own.
func (o *Options) Flags(name string, stderr io.Writer) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.Binary, "karve", "", "`BINARY` to run")
	flags.StringVar(&o.Dir, "dir", "", "empty `DIRECTORY` for the cluster and its log, which stay there (default: a temporary one)")
	flags.DurationVar(&o.Length, "for", o.Length, "how long the soak lasts")
	flags.DurationVar(&o.Compact, "compact", o.Compact, "how often the API server compacts")
	return flags
}

// Parse parses args and checks the options of every soak. It returns flag.ErrHelp if the
// flag set has printed what is wrong.
func (o *Options) Parse(flags *flag.FlagSet, args []string) error {
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.Binary == "":
		return errors.New("-karve is missing: the binary to run")
	case o.Length <= 0 || o.Compact <= 0:
		return fmt.Errorf("-for is %v and -compact is %v: both have to be more than 0", o.Length, o.Compact)
	}
	binary, err := filepath.Abs(o.Binary)
	if err != nil {
		return err
	}
	o.Binary = binary
	_, err = exec.LookPath(binary)
	return err
}

// Open makes the directory, and the file in it for the server's log. done closes the file,
// and removes the directory if it is a temporary one.
func (o *Options) Open() (log *os.File, done func(), err error) {
	temporary := o.Dir == ""
	if temporary {
		o.Dir, err = os.MkdirTemp("", "karve-soak-")
	} else {
		err = os.MkdirAll(o.Dir, 0o700)
	}
	if err != nil {
		return nil, nil, err
	}
	dir := o.Dir
	log, err = os.OpenFile(filepath.Join(dir, "server.log"), os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		if temporary {
			os.RemoveAll(dir)
		}
		return nil, nil, err
	}
	return log, func() {
		log.Close()
		if temporary {
			os.RemoveAll(dir)
		}
	}, nil
}

// DataDir is where the cluster of the soak is.
func (o *Options) DataDir() string { return filepath.Join(o.Dir, "data") }
