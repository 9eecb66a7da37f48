// Command conformance runs Kubernetes' own Conformance tests against Karve: those that need
// no node, and those that need only nodes that report Pods as running. lists/ says which
// these are, and why the others are excluded. With -nodes it runs all of them on real nodes. It is a module of its own, because upstream's
// suite does not belong among Karve's dependencies. scripts/conformance builds and runs it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

const usage = `usage: scripts/conformance [options]

Builds upstream's e2e.test, starts a control plane in a temporary directory and
runs the Conformance tests that are listed in conformance/lists. It exits 1 if
one of them fails, or if the lists and upstream's suite have parted.

With -nodes it runs all Conformance tests on real nodes (scripts/nodes), as root.
It keeps the results in build/conformance/nodes.json and, for other programs,
nodes.junit.xml. When it is run again, it runs what has not passed.
conformance/lists/failing.txt has the tests that are known to fail there.

With -servers 2, a relay gives each new connection to one of two servers in turn.
It exits 1, too, if one of them answers less than a quarter of the tests' requests.

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

type options struct {
	only    string
	focus   string
	output  string
	procs   int
	nodes   int // real ones
	fresh   bool
	batch   int
	fake    int // simulated nodes
	servers int
	timeout time.Duration
	all     bool
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("conformance", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.only, "only", "", "run one list: "+strings.Join(listNames(), " or "))
	flags.StringVar(&o.focus, "focus", "", "of the lists, run what this regular expression finds")
	flags.StringVar(&o.output, "o", "", "json: a document with every test instead of the table")
	flags.IntVar(&o.procs, "procs", 4, "how many tests at a time")
	flags.IntVar(&o.nodes, "nodes", 0, "run every Conformance test on this many real nodes")
	flags.BoolVar(&o.fresh, "fresh", false, "with -nodes: forget the results that are kept, and run all tests again")
	flags.IntVar(&o.batch, "batch", 40, "with -nodes: keep the results after this many tests")
	flags.IntVar(&o.fake, "simulate-nodes", 3, "how many simulated nodes, for the list that needs some")
	flags.IntVar(&o.servers, "servers", 1, "run the tests against this many servers on one PostgreSQL in turn; with -only")
	flags.DurationVar(&o.timeout, "timeout", 30*time.Minute, "how long each list may take")
	flags.BoolVar(&o.all, "all", false, "run every Conformance test on simulated nodes, to see which belong into the lists")
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	var problems []error
	if flags.NArg() > 0 {
		problems = append(problems, fmt.Errorf("%q: want only options", flags.Args()))
	}
	if o.output != "" && o.output != "json" {
		problems = append(problems, fmt.Errorf("-o %s: want json", o.output))
	}
	if o.nodes < 0 || o.nodes > 0 && (o.only != "" || o.all) {
		problems = append(problems, fmt.Errorf("-nodes %d: want a number of nodes, without -only and -all", o.nodes))
	}
	if o.servers < 1 || o.servers > 1 && (o.nodes > 0 || o.only == "") {
		problems = append(problems, fmt.Errorf("-servers %d: want at least 1, and with several -only, because a database has one cluster", o.servers))
	}
	if o.servers > 1 && os.Getenv(databaseVariable) == "" {
		problems = append(problems, fmt.Errorf("-servers %d: no database: run scripts/databases postgres -- scripts/conformance -servers %[1]d -only nodeless", o.servers))
	}
	if o.batch < 1 {
		problems = append(problems, fmt.Errorf("-batch %d: want at least 1", o.batch))
	}
	if _, err := regexp.Compile(o.focus); err != nil {
		problems = append(problems, fmt.Errorf("-focus: %w", err))
	}
	if o.only != "" && listOf(o.only) == nil {
		problems = append(problems, fmt.Errorf("-only %s: the lists are %s", o.only, strings.Join(listNames(), " and ")))
	}
	return o, errors.Join(problems...)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	own, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own binary: %w", err)
	}
	// scripts/conformance has put it into the repository's build/conformance.
	dir := filepath.Dir(own)
	module := filepath.Join(dir, "..", "..", "conformance")
	version, source, err := kubernetes(ctx, module)
	if err != nil {
		return err
	}
	names, err := conformanceTests(source)
	if err != nil {
		return err
	}
	excluded, err := compareLists(filepath.Join(module, "lists"), names)
	if err != nil && !o.all { // --all finds out what belongs into the lists
		return err
	}
	s, err := buildSuite(ctx, dir, module, version, stderr)
	if err != nil {
		return err
	}

	if o.nodes > 0 {
		return s.runOnNodes(ctx, module, version, names, o, stdout, stderr)
	}
	rep := report{Kubernetes: version, Tests: len(names), Excluded: excluded}
	for _, l := range lists {
		if o.only != "" && o.only != l.Name {
			continue
		}
		wanted := l.tests
		if o.all {
			wanted = names
		}
		if wanted, err = focused(wanted, o.focus); err != nil {
			return err
		}
		if len(wanted) == 0 || o.all && !l.Nodes {
			continue
		}
		nodes := 0
		if l.Nodes {
			nodes = o.fake
		}
		began := time.Now()
		results, err := s.run(ctx, wanted, nodes, o, stderr)
		if err != nil {
			return fmt.Errorf("%s: %w", l.Name, err)
		}
		rep.add(l, results, time.Since(began))
	}
	if len(rep.Lists) == 0 {
		return fmt.Errorf("-focus %s: no test of the lists has that in its name", o.focus)
	}
	if o.output == "json" {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		if err := enc.Encode(rep); err != nil {
			return err
		}
	} else {
		rep.print(stdout)
	}
	return rep.verdict()
}

func focused(names []string, focus string) ([]string, error) {
	expression, err := regexp.Compile(focus)
	if err != nil {
		return nil, fmt.Errorf("-focus: %w", err)
	}
	var found []string
	for _, name := range names {
		if expression.MatchString(name) {
			found = append(found, name)
		}
	}
	return found, nil
}
