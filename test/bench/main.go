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

const usage = `usage: scripts/bench storage|start|footprint|api|datastores|crds|simulate [options]

storage    the datastore on a socket, beside etcd
start      start and stop, beside etcd + kube-apiserver; -only large: with 300,000 objects, from a cold page cache
footprint  memory, CPU, writes and size of an idle control plane
api        creates, updates, deletes, reads and watches through the API, and how fast
           the controllers react
datastores Karve on its built-in datastore, PostgreSQL, MariaDB, one etcd and three
crds       many large CustomResourceDefinitions: time, CPU and memory
simulate   the cost of simulated nodes, and how fast Pods run on them
stat       compares two files of -record: scripts/bench stat OLD NEW

scripts/bench NAME -h lists the options of a benchmark. Nothing else should run at the same time.
`

var commands = map[string]func(ctx context.Context, args []string, stdout, stderr io.Writer) error{
	"storage": storage, "start": start, "footprint": footprint, "api": api,
	"datastores": datastores, "crds": crds, "simulate": simulate,
}

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
	if len(args) == 0 || args[0] == "-h" || args[0] == "--help" {
		fmt.Fprint(stderr, usage)
		return flag.ErrHelp
	}
	command, ok := commands[args[0]]
	if !ok {
		return fmt.Errorf("unknown benchmark %q\n%s", args[0], usage)
	}
	return command(ctx, args[1:], stdout, stderr)
}
