// Command bench measures Karve beside what it replaces, in one run on one
// machine, so that the ratios mean something where the times do not. It is a
// module of its own: its peers (an etcd server and a kube-apiserver) have no place
// among Karve's dependencies. scripts/bench builds and runs it.
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

	"github.com/karve-k8s/karve/bench/engine"
)

const usage = `usage: scripts/bench storage|scale|start|footprint|api|abandoned|flash|simulate [options]

storage    the engine, in process and on a socket, beside etcd
scale      the engine with many keys: starts, memory, pages, counts, compaction
start      from the start of the process until everything a cluster is born with
           answers, and from SIGTERM until it is gone; beside etcd + kube-apiserver
footprint  memory, CPU, writes and goroutines of an idle control plane, and its size
api        creates, updates, deletes, reads and watches through the API, and how fast
           the controllers are
abandoned  what a large request costs whose client leaves, beside etcd +
           kube-apiserver
flash      what an idle cluster with nodes writes to the disk in a day
simulate   what simulated nodes cost, and how fast Pods run on them

scripts/bench NAME -h lists the options of a benchmark. Nothing else should run meanwhile.
`

func main() {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
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
		return engine.Storage(ctx, args[1:], stdout, stderr)
	case "scale":
		return engine.Scale(ctx, args[1:], stdout, stderr)
	case "start":
		return start(ctx, args[1:], stdout, stderr)
	case "footprint":
		return footprint(ctx, args[1:], stdout, stderr)
	case "api":
		return api(ctx, args[1:], stdout, stderr)
	case "abandoned":
		return abandoned(ctx, args[1:], stdout, stderr)
	case "flash":
		return flash(ctx, args[1:], stdout, stderr)
	case "simulate":
		return simulate(ctx, args[1:], stdout, stderr)
	case engine.ChildCommand:
		return engine.Child(ctx, args[1:], stdin, stdout)
	case "-h", "-help", "--help", "help":
		fmt.Fprint(stderr, usage)
		return flag.ErrHelp
	default:
		return fmt.Errorf("there is no benchmark %q, only storage, scale, start, footprint, api, abandoned, flash and simulate", args[0])
	}
}
