package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/deviations"
)

// serverCommand is `karve server`.
func serverCommand() *cli.Command {
	flags := options.Server()
	return &cli.Command{
		Name:               "server",
		Usage:              "run the control plane until it is told to stop",
		CustomHelpTemplate: options.Help(flags, "karve server: run the control plane until it is told to stop\n"),
		Flags:              flags,
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return options.ExplainMistake(err, "karve server", flags)
		},
		Action: func(c *cli.Context) error {
			if slices.Equal(c.StringSlice("upstream"), []string{"list"}) {
				return deviations.Print(c.App.Writer)
			}
			config, err := options.Read(c)
			if err != nil { // with what the server would refuse: all at once
				return errors.Join(err, config.Validate(c.Context))
			}
			config.Ready = func(info server.Info) { greet(c.App.Writer, info) }
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
			config.ShortenGoodbyes()
			return ownership.Explain(server.Run(ctx, config), config.DataDir)
		},
	}
}

// greet is the one line a successful start prints.
func greet(w io.Writer, info server.Info) {
	plain := ""
	if info.InsecureURL != "" {
		plain = " and " + info.InsecureURL
	}
	var slowest []string
	for _, part := range info.Slowest {
		slowest = append(slowest, fmt.Sprintf("%s %v", part.Part, part.Took.Round(time.Millisecond)))
	}
	fmt.Fprintf(w, "karve is ready after %v (%s) at %s%s. Next: export KUBECONFIG=%s; kubectl get namespaces\n",
		info.Took.Round(time.Millisecond), strings.Join(slowest, ", "), info.URL, plain, info.Kubeconfig)
}
