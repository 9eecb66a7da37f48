package command

import (
	"cmp"
	"errors"
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/install/check"
	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/kine/location"
	"github.com/karve-k8s/karve/server"
)

// checkCommand is `karve check`: what a start would find, before it.
func checkCommand() *cli.Command {
	return &cli.Command{
		Name:  "check",
		Usage: "check whether this machine is ready for karve server",
		Description: `It takes the options, variables and configuration file of karve server. It starts
nothing, and removes all files that it creates. Exit code: 0 if no check fails,
otherwise 1.`,
		Flags: append([]cli.Flag{
			output.Flag(),
			&cli.StringFlag{Name: "replaces", Usage: "data `DIR` of a server that will stop before the start: its ports and directory count as free"},
		}, options.Server()...),
		Action: runCheck,
	}
}

func runCheck(c *cli.Context) error {
	config, err := options.Read(c)
	if wrong := ownership.RefuseFIFOs(config.DataDir); wrong != nil {
		return wrong
	}
	looked := target(config)
	looked.Look = func(path string) (*sqlitefile.Info, error) { return servers.LookAt(c.Context, looked.DataDir, path) }
	if old := c.String("replaces"); old != "" {
		var wrong error
		if looked.Replaced, _, wrong = directory.Holder(options.Absolute(old)); wrong != nil {
			err = errors.Join(err, fmt.Errorf("--replaces: %w", wrong))
		}
	}
	// The configuration is checked last, because that is slow, and shown first.
	all := append(checkConfig(c, config, err), check.Run(c.Context, looked)...)
	err = output.Show(c, all, func(w io.Writer) {
		fmt.Fprintln(w, "CHECK\tRESULT\tFOUND\tWHAT TO DO")
		for _, f := range all {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.Check, f.Result, f.Found, cmp.Or(f.Do, "-"))
		}
	})
	if failed := check.Failed(all); err == nil && failed > 0 {
		return fmt.Errorf("%d of %d checks failed", failed, len(all))
	}
	return err
}

// target is what a server with that configuration would use.
func target(config server.Config) check.Target {
	t := check.Target{DataDir: options.Absolute(config.DataDir), MemoryLimit: config.MemoryLimit}
	if dir, err := location.Dir(config.DatastoreEndpoint, t.DataDir); err == nil {
		t.StoreDir = dir
	} else {
		t.Store = "not the built-in one"
	}
	for _, p := range config.Ports() {
		t.Ports = append(t.Ports, check.Port{Option: p.Option, Number: p.Number, Try: p.Try})
	}
	return t
}

// checkConfig returns a finding for each problem of the configuration: those of reading it, and
// those for which a start would be refused.
func checkConfig(c *cli.Context, config server.Config, reading error) []check.Finding {
	const name = "configuration"
	// Files are read as the user who will read them: root would refuse those of the service, and accept
	// its own.
	validate := func() error { return config.Validate(c.Context) }
	err := reading
	if config.DataDir == "" {
		err = errors.Join(err, validate())
	} else {
		err = errors.Join(err, ownership.Act(options.Absolute(config.DataDir), validate))
	}
	if err == nil {
		return []check.Finding{{Check: name, Result: check.OK, Found: "every option is understood"}}
	}
	var all []check.Finding
	for _, problem := range flatten(err) {
		all = append(all, check.Finding{Check: name, Result: check.Fail, Found: problem.Error(), Do: "see karve server --help"})
	}
	return all
}
