// Command upgrade moves Karve to another version of Kubernetes, and reports what changed
// upstream. scripts/upgrade-kubernetes runs it, and says how.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

var errUsage = errors.New("usage: scripts/upgrade-kubernetes [-n] VERSION | --report-only OLD NEW | --older")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "upgrade-kubernetes:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	dryRun := len(args) > 0 && args[0] == "-n"
	if dryRun {
		args = args[1:]
	}
	switch {
	case len(args) == 3 && args[0] == "--report-only" && !dryRun:
		return reportVersions(ctx, out, args[1], args[2])
	case len(args) == 1 && args[0] == "--older" && !dryRun:
		return (&upgrade{ctx: ctx, out: out}).pins()
	case len(args) == 1 && args[0] != "" && args[0][0] != '-':
		u, err := newUpgrade(ctx, out, args[0])
		if err != nil {
			return err
		}
		if dryRun {
			return u.show()
		}
		return u.run()
	}
	return errUsage
}

// reportVersions prints the report for two versions. Their source is downloaded if need be.
func reportVersions(ctx context.Context, out io.Writer, from, to string) error {
	ours, err := ourRequires(ctx)
	if err != nil {
		return err
	}
	before, err := download(ctx, from, ours)
	if err != nil {
		return err
	}
	after, err := download(ctx, to, ours)
	if err != nil {
		return err
	}
	return report(out, before, after, sections(ours))
}
