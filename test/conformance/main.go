// Command conformance runs Kubernetes' own Conformance tests against Karve: those that need no node, those that need
// only simulated nodes or, with -nodes, all of them on real nodes. lists/ says which these are, and why the others are
// excluded. It is in the module test, because upstream's suite does not belong among Karve's dependencies.
// scripts/conformance builds the programs, and runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

type options struct {
	root    string // of the repository
	only    string
	focus   string
	procs   int
	nodes   int // real ones
	all     bool
	timeout time.Duration
}

// Two tests wait for a round of each of these. By default a round takes five minutes, and one test waits ten.
var intervals = []string{"--kube-apiserver-arg", "etcd-compaction-interval=30s", "--kube-controller-manager-arg", "resource-quota-sync-period=30s"}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("conformance", flag.ContinueOnError)
	flags.StringVar(&o.root, "root", ".", "the directory of the repository")
	flags.StringVar(&o.only, "only", "", "run one list: "+strings.Join(listNames(), " or "))
	flags.StringVar(&o.focus, "focus", "", "of the lists, run what this regular expression finds")
	flags.IntVar(&o.procs, "procs", 4, "how many tests at a time")
	flags.IntVar(&o.nodes, "nodes", 0, "run every Conformance test on this many real nodes")
	flags.BoolVar(&o.all, "all", false, "run every Conformance test on simulated nodes, to see which belong into the lists")
	flags.DurationVar(&o.timeout, "timeout", 2*time.Hour, "how long each list may take")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	var problems []error
	if flags.NArg() > 0 {
		problems = append(problems, fmt.Errorf("%q: want only options", flags.Args()))
	}
	if o.nodes < 0 || o.nodes > 0 && (o.only != "" || o.all) {
		problems = append(problems, fmt.Errorf("-nodes %d: want a number of nodes, without -only and -all", o.nodes))
	}
	if o.only != "" && listOf(o.only) == nil {
		problems = append(problems, fmt.Errorf("-only %s: the lists are %s", o.only, strings.Join(listNames(), " and ")))
	}
	if _, err := regexp.Compile(o.focus); err != nil {
		problems = append(problems, fmt.Errorf("-focus: %w", err))
	}
	return o, errors.Join(problems...)
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	module := filepath.Join(o.root, "test", "conformance")
	upstream, err := upstreamTests(ctx, module)
	if err != nil {
		return err
	}
	if err := readLists(filepath.Join(module, "lists"), upstream); err != nil && !o.all { // -all finds out what belongs into the lists
		return err
	}
	chosen, known := lists, map[string]string{}
	switch {
	case o.nodes > 0:
		chosen = []*list{{Name: "real nodes", tests: upstream}}
		if known, err = readFailing(filepath.Join(module, "lists"), upstream); err != nil {
			return err
		}
	case o.all:
		chosen = []*list{{Name: "all", Nodes: true, tests: upstream}}
	case o.only != "":
		chosen = []*list{listOf(o.only)}
	}
	focus := regexp.MustCompile(o.focus)
	var problems []error
	for _, l := range chosen {
		wanted := slices.DeleteFunc(slices.Clone(l.tests), func(name string) bool { return !focus.MatchString(name) })
		if len(wanted) == 0 {
			continue
		}
		fmt.Fprintf(stdout, "%s: %d tests\n", l.Name, len(wanted))
		began := time.Now()
		results, err := o.runTests(ctx, l, wanted, stdout)
		if err != nil {
			return fmt.Errorf("%s: %w", l.Name, err)
		}
		problems = append(problems, summarise(stdout, l.Name, results, known, time.Since(began)))
	}
	return errors.Join(problems...)
}

// runTests runs tests on a new cluster, and returns their results. What the suite prints is in build/conformance/LIST.log.
func (o options) runTests(ctx context.Context, l *list, tests []string, stdout io.Writer) (_ []result, err error) {
	built := filepath.Join(o.root, "build", "conformance")
	work, err := os.MkdirTemp("", "karve-conformance-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	log, err := os.Create(filepath.Join(built, strings.ReplaceAll(l.Name, " ", "-")+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()

	karve := filepath.Join(built, "karve")
	env := append(os.Environ(), "PATH="+built+string(os.PathListSeparator)+os.Getenv("PATH"))
	suite := []string{"--num-nodes=" + strconv.Itoa(o.nodes)}
	var command []string
	if o.nodes > 0 {
		nodes := filepath.Join(o.root, "scripts", "nodes")
		env = append(env, "KARVE="+karve, "KARVE_NODES_DIR="+filepath.Join(built, "nodes"), "KARVE_NODES_SUITE=1", "KARVE_NODES_OPTIONS="+strings.Join(intervals, " "))
		call := func(ctx context.Context, args ...string) *exec.Cmd {
			cmd := exec.CommandContext(ctx, nodes, args...)
			cmd.Env, cmd.Stderr = env, stdout
			return cmd
		}
		defer func() {
			if down := call(context.WithoutCancel(ctx), "down").Run(); down != nil {
				err = errors.Join(err, fmt.Errorf("take the nodes away: %w", down))
			}
		}()
		if err := call(ctx, "up", strconv.Itoa(o.nodes)).Run(); err != nil {
			return nil, fmt.Errorf("start nodes: %w", err)
		}
		config, err := call(ctx, "kubeconfig").Output()
		if err != nil {
			return nil, fmt.Errorf("get a kubeconfig: %w", err)
		}
		if err := os.WriteFile(filepath.Join(work, "kubeconfig"), config, 0o600); err != nil {
			return nil, err
		}
		env = append(env, "KUBECONFIG="+filepath.Join(work, "kubeconfig"))
		command = []string{nodes, "network", "server"} // the tests reach the machines in the server's network only
	} else {
		command = append([]string{karve, "run"}, intervals...)
		suite = append(suite, "--allowed-not-ready-nodes=-1") // without waiting for nodes, and for Pods of kube-system
		if l.Nodes {
			command = append(command, "--simulate-nodes", "3")
		}
		command = append(command, "--")
	}
	var escaped []string
	for _, name := range tests {
		escaped = append(escaped, regexp.QuoteMeta(name))
	}
	command = slices.Concat(command, []string{filepath.Join(built, "ginkgo"), "--procs=" + strconv.Itoa(o.procs), "--no-color", "--silence-skips",
		"--timeout=" + o.timeout.String(), "--output-dir=" + work, "--json-report=report.json", "--label-filter=Conformance",
		"--focus=^.*(" + strings.Join(escaped, "|") + ")", filepath.Join(built, "e2e.test"), "--",
		"--provider=skeleton", "--kubectl-path=" + filepath.Join(built, "kubectl"), "--e2e-output-dir=" + work, "--dump-logs-on-failure=false"}, suite)
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = env, work, log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	failed := cmd.Run()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	results, err := readReport(filepath.Join(work, "report.json"))
	if err == nil {
		// The report also has the tests that were not selected, as skipped.
		results = slices.DeleteFunc(results, func(r result) bool { return !slices.Contains(tests, r.name) })
		err = whole(results, tests)
	}
	if err == nil && failed != nil && !slices.ContainsFunc(results, result.failed) {
		err = errors.New("the suite failed, but no test of it")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %v: %s has what the suite printed", err, failed, log.Name())
	}
	return results, nil
}
