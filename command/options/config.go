package options

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/apiserver"
)

// serverConfig reads the options into the server's configuration.
func serverConfig(c *cli.Context) (server.Config, error) {
	var config server.Config
	var problems []error
	for _, o := range table(&config) {
		if o.set != nil {
			problems = append(problems, o.set(c))
		}
	}
	switch config.InsecurePort { // as Kubernetes had it, 0 is off
	case 0:
		config.DisableInsecure = true
	case -1:
		config.InsecurePort = 0
	}
	upstream, err := apiserver.UserFlags()
	if err != nil {
		return config, err
	}
	set := setFlags(c)
	var args []string
	for _, f := range upstream {
		switch {
		case !set[f.Name]:
		case f.Bool:
			args = append(args, fmt.Sprintf("%s=%v", f.Name, c.Bool(f.Name)))
		default:
			for _, value := range c.StringSlice(f.Name) {
				args = append(args, f.Name+"="+value)
			}
		}
	}
	config.APIServerArgs = append(args, config.APIServerArgs...) // an option's own name counts less than kube-apiserver-arg
	return config, errors.Join(problems...)
}

// setFlags are the names of what was given on the command line, in the configuration
// file or in a variable. It is Context.IsSet for all flags at once, which goes
// through all of them for each.
func setFlags(c *cli.Context) map[string]bool {
	set := map[string]bool{}
	for _, name := range c.FlagNames() {
		set[name] = true
	}
	for _, f := range c.Command.Flags {
		if f.IsSet() {
			set[f.Names()[0]] = true
		}
	}
	return set
}
