// Command bench measures Karve beside what it replaces, in one run on one
// machine, so that the ratios mean something where the times do not. It is a
// module of its own: its peers (an etcd server, kine with its own SQLite driver)
// have no place among Karve's dependencies. scripts/bench builds and runs it.
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
)

const usage = `usage: scripts/bench storage [-quick] [-o table|json] [-rounds N] [-dir DIR] [-peers a,b]

storage  the engine, in process and on a socket, beside kine on SQLite and etcd
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return flag.ErrHelp
	}
	switch args[0] {
	case "storage":
		return storage(ctx, args[1:], stdout, stderr)
	case childCommand:
		return child(ctx, args[1:], stdin, stdout, stderr)
	case "-h", "-help", "--help", "help":
		fmt.Fprint(stderr, usage)
		return flag.ErrHelp
	default:
		return fmt.Errorf("there is no benchmark %q, only storage", args[0])
	}
}
