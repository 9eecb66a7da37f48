package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/deviations"
)

// serverCommand is `karve server`.
func serverCommand() *cli.Command {
	return &cli.Command{
		Name:  "server",
		Usage: "run a control plane until it is stopped",
		Description: `Give an option as --name VALUE, in a variable KARVE_NAME, or as name: value in the
file of --config. The first of these that is set counts. A variable that is nearly
the name of an option is an error.`,
		Flags: options.Server(),
		Action: func(c *cli.Context) error {
			if slices.Equal(c.StringSlice("upstream"), []string{"list"}) {
				return deviations.Print(c.App.Writer)
			}
			config, err := options.Read(c)
			if err != nil { // together with what the server would refuse
				return errors.Join(err, config.Validate(c.Context))
			}
			started := showProgress(&config, config.Log)
			defer started()
			config.Ready = func(info server.Info) {
				started()
				greet(c.App.Writer, info)
			}
			ctx := c.Context
			if c.Bool("stop-with-stdin") {
				var end context.CancelFunc
				ctx, end = context.WithCancel(ctx)
				defer end()
				go func() {
					_, _ = io.Copy(io.Discard, os.Stdin)
					end()
				}()
			}
			return ownership.Explain(server.Run(ctx, config), config.DataDir)
		},
	}
}

// greet prints what a user needs of a server that is ready: where it is, and what to do next on
// lines of their own.
func greet(w io.Writer, info server.Info) {
	plain := ""
	if info.InsecureURL != "" {
		plain = " and " + info.InsecureURL
	}
	var slowest []string
	for _, part := range info.Slowest {
		slowest = append(slowest, fmt.Sprintf("%s %v", part.Part, part.Took.Round(time.Millisecond)))
	}
	client := "kubectl"
	if _, err := exec.LookPath(client); err != nil {
		client = "karve kubectl"
	}
	fmt.Fprintf(w, "karve is ready after %v (%s) at %s%s\nNext:\n  %s; %s get namespaces\n",
		info.Took.Round(time.Millisecond), strings.Join(slowest, ", "), info.URL, plain, output.SetVariable(runtime.GOOS, "KUBECONFIG", info.Kubeconfig), client)
}

// showProgress makes a server with that configuration log its progress until done is called.
func showProgress(config *server.Config, log *logrus.Logger) (done func()) {
	p := output.NewStartProgress(log)
	config.Progress = func(at server.Progress) { p.Tell(at.Part, at.For, at.Doing) }
	return p.Done
}
