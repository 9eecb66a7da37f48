package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/server/flagz"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/logs"
	"k8s.io/component-base/term"
	"k8s.io/component-base/version/verflag"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/karve-k8s/karve/server/flags"
)

// Upstream is a command line of kube-apiserver. Its flags have upstream's defaults, unlike
// everything else in this package, which has Karve's.
type Upstream struct {
	*options.ServerRunOptions
	sets cliflag.NamedFlagSets
	all  *pflag.FlagSet

	trial basecompatibility.ComponentGlobalsRegistry // has the gates that the flags set
}

const upstreamsName = "kube-apiserver"

// ParseUpstream reads the arguments of kube-apiserver (cmd/kube-apiserver/app/server.go,
// NewAPIServerCommand). The error is [pflag.ErrHelp] for --help.
func ParseUpstream(args []string) (*Upstream, error) {
	o := options.NewServerRunOptions()
	o.GenericServerRunOptions.ShutdownWatchTerminationGracePeriod = watchGrace // see watchGrace
	process := o.GenericServerRunOptions.ComponentGlobalsRegistry
	trial, err := trialRegistry()
	if err != nil {
		return nil, err
	}
	o.GenericServerRunOptions.ComponentGlobalsRegistry = trial
	u := &Upstream{ServerRunOptions: o, sets: o.Flags(), all: pflag.NewFlagSet(upstreamsName, pflag.ContinueOnError), trial: trial}
	o.GenericServerRunOptions.ComponentGlobalsRegistry = process
	o.Flagz = flagz.NamedFlagSetsReader{FlagSets: u.sets}
	verflag.AddFlags(u.sets.FlagSet("global"))
	globalflag.AddGlobalFlags(u.sets.FlagSet("global"), upstreamsName, logs.SkipLoggingConfigurationFlags())
	u.all.SetOutput(io.Discard)
	u.all.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	for _, set := range u.sets.FlagSets {
		u.all.AddFlagSet(set)
	}
	if err := u.all.Parse(args); err != nil {
		return u, u.explain(err)
	}
	if asked, err := u.all.GetBool("help"); err == nil && asked {
		return u, pflag.ErrHelp
	}
	if u.all.NArg() > 0 && strings.Join(u.all.Args(), "") != "" {
		return u, fmt.Errorf("%s takes flags only, got %q", upstreamsName, u.all.Args())
	}
	return u, nil
}

// explain proposes the nearest flag for one that was misspelt.
func (u *Upstream) explain(err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	var names []string
	u.all.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	name := unknown.GetSpecifiedName()
	if near := flags.Nearest(name, names); near != "" {
		return fmt.Errorf("%s has no flag --%s; did you mean --%s?", upstreamsName, name, near)
	}
	return fmt.Errorf("%s has no flag --%s (see %s --help)", upstreamsName, name, upstreamsName)
}

// Help writes the same flags as upstream's --help.
func (u *Upstream) Help(w io.Writer) {
	fmt.Fprintf(w, "The Kubernetes API server, as karve runs it.\n\nUsage:\n  %s [flags]\n", upstreamsName)
	columns, _, _ := term.TerminalSize(w)
	cliflag.PrintSections(w, u.sets, columns)
}

// Given reports whether the command line sets a flag.
func (u *Upstream) Given(name string) bool { return u.all.Changed(name) }

// PrintVersion does what --version asks for and then ends the process. Without --version, it
// does nothing.
func (u *Upstream) PrintVersion() { verflag.PrintAndExitIfRequested() }

// Gates returns the feature gates of the command line.
func (u *Upstream) Gates() (*Gates, error) { return gatesOf(u.trial) }

// Complete returns the configuration of the command line, or everything that upstream refuses
// about it. It sets the warnings of the whole process. The process must already
// have the feature gates of the command line.
func (u *Upstream) Complete(ctx context.Context) (*options.CompletedOptions, error) {
	prepareProcess()
	completed, err := completeOptions(ctx, u.ServerRunOptions)
	return &completed, err
}
