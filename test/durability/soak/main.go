// Command soak runs a karve server for a long time and checks from outside what should not
// develop: lost writes, leaks, and watches that fall behind compaction. See scripts/soak.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/karve-k8s/karve/test/durability/soak/load"
	"github.com/karve-k8s/karve/test/durability/soak/watches"
)

const usage = `usage: soak load|watches [OPTIONS]

load     a mixed load for hours, with kills
watches  client-go's informers of every type beside frequent compaction

soak NAME -h lists the options.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "soak:", err)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return flag.ErrHelp
	}
	switch args[0] {
	case "load":
		return load.Run(ctx, args[1:], stdout, stderr)
	case "watches":
		return watches.Run(ctx, args[1:], stdout, stderr)
	case "-h", "-help", "--help", "help":
		fmt.Fprint(stderr, usage)
		return flag.ErrHelp
	}
	return fmt.Errorf("there is no soak %q, only load and watches", args[0])
}
