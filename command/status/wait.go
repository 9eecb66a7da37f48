package status

import (
	"context"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
)

// waitPoll is how long `karve wait` rests between two looks.
const waitPoll = 50 * time.Millisecond

// Wait is `karve wait`.
func Wait() *cli.Command {
	return &cli.Command{
		Name:  "wait",
		Usage: "wait until the server in a data directory is ready",
		Description: `It may be started before the server. Exit code: 0 as soon as the server is ready, as
karve status finds it, and 1 after --timeout, with what was missing.`,
		Flags: []cli.Flag{
			options.Config(), options.DataDir(),
			&cli.DurationFlag{Name: "timeout", Value: 5 * time.Minute, Usage: "`DURATION` to wait"},
		},
		Before: options.FindDataDir,
		Action: func(c *cli.Context) error {
			ctx, cancel := context.WithTimeout(c.Context, c.Duration("timeout"))
			defer cancel()
			show := output.Report(c)
			dir := options.Absolute(c.String("data-dir"))
			var missing error
			for {
				err := Ready(ctx, dir)
				if err == nil {
					return nil
				}
				if ctx.Err() == nil {
					missing = err // the last one that the end of the time has not caused
				}
				show(fmt.Sprint(missing))
				select {
				case <-time.After(waitPoll):
				case <-ctx.Done():
					if c.Context.Err() != nil {
						return context.Cause(c.Context)
					}
					return fmt.Errorf("not ready after %v: %w", c.Duration("timeout"), missing)
				}
			}
		},
	}
}
