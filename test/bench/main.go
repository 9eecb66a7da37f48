// Command bench measures Karve beside what it replaces. It runs both on one machine in one run,
// because the ratio of two times means more than either of them. It is in the module test: an
// etcd server and a kube-apiserver have no place among Karve's dependencies. scripts/bench
// builds and runs it.
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

const usage = `usage: scripts/bench storage|start|minute|footprint|api|datastores|fresh|large|crds|simulate [options]

storage    the datastore on a socket, beside etcd
start      start and stop, beside etcd + kube-apiserver
minute     memory and CPU of the first minute, and the smallest control group for it
footprint  memory, CPU, writes, goroutines and size of an idle control plane
api        creates, updates, deletes, reads and watches through the API, and how fast
           the controllers react
datastores Karve on its built-in datastore, PostgreSQL, MariaDB, one etcd and three
fresh      creates that begin when a new control plane is ready, and memory after them
large      a start with 300,000 objects, from a cold page cache: time and memory
crds       many large CustomResourceDefinitions: time, CPU and memory
simulate   the cost of simulated nodes, and how fast Pods run on them
stat       compares two files of -record: scripts/bench stat OLD NEW

scripts/bench NAME -h lists the options of a benchmark. Nothing else should run at the same time.
`

func main() {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return flag.ErrHelp
	}
	switch args[0] {
	case "storage":
		return storage(ctx, args[1:], stdout, stderr)
	case "start":
		return start(ctx, args[1:], stdout, stderr)
	case "minute":
		return minuteCommand(ctx, args[1:], stdout, stderr)
	case "footprint":
		return footprint(ctx, args[1:], stdout, stderr)
	case "api":
		return api(ctx, args[1:], stdout, stderr)
	case "datastores":
		return datastores(ctx, args[1:], stdout, stderr)
	case "fresh":
		return fresh(ctx, args[1:], stdout, stderr)
	case "large":
		return large(ctx, args[1:], stdout, stderr)
	case "crds":
		return crds(ctx, args[1:], stdout, stderr)
	case "simulate":
		return simulate(ctx, args[1:], stdout, stderr)
	case "-h", "-help", "--help", "help":
		fmt.Fprint(stderr, usage)
		return flag.ErrHelp
	default:
		return fmt.Errorf("unknown benchmark %q, want storage, start, minute, footprint, api, datastores, fresh, large, crds, simulate or stat", args[0])
	}
}
