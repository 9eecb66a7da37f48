package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2/reporters"
	"github.com/onsi/ginkgo/v2/types"
)

// A ledger has the results of the tests on real nodes, over several runs of this program: those
// of the newest run for each test.
type ledger struct {
	file  string
	junit string

	Kubernetes string            `json:"kubernetes"`
	Nodes      int               `json:"nodes"`
	Seconds    float64           `json:"seconds"` // by the clock, of all runs
	Results    map[string]result `json:"results"`
}

// openLedger reads the results that are kept. Those of another version or of another
// number of nodes do not count.
func openLedger(dir, version string, o options) (*ledger, error) {
	l := &ledger{file: filepath.Join(dir, "nodes.json"), junit: filepath.Join(dir, "nodes.junit.xml")}
	data, err := os.ReadFile(l.file)
	if err == nil {
		if err := json.Unmarshal(data, l); err != nil {
			return nil, fmt.Errorf("read %s: %w; -fresh begins anew", l.file, err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if o.fresh || l.Kubernetes != version || l.Nodes != o.nodes || l.Results == nil {
		l.Kubernetes, l.Nodes, l.Seconds, l.Results = version, o.nodes, 0, map[string]result{}
	}
	return l, nil
}

// left returns which of these tests have not passed.
func (l *ledger) left(tests []string) []string {
	return slices.DeleteFunc(slices.Clone(tests), func(name string) bool { return l.Results[name].State == types.SpecStatePassed.String() })
}

// batches divides tests into batches of at most size. Those that run alone, one after another, are
// behind the others, in batches of their own: in a mixed batch they would begin only after the
// slowest of the others.
func batches(tests []string, size int) [][]string {
	var parallel, serial []string
	for _, name := range tests {
		if isSerial(name) {
			serial = append(serial, name)
		} else {
			parallel = append(parallel, name)
		}
	}
	return slices.AppendSeq(slices.Collect(slices.Chunk(parallel, size)), slices.Chunk(serial, size))
}

func isSerial(name string) bool { return strings.Contains(name, "[Serial]") }

// keep adds results, and writes the files.
func (l *ledger) keep(results []result, took time.Duration) error {
	l.Seconds += took.Seconds()
	for _, r := range results {
		l.Results[r.Name] = r
	}
	data, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	// An interrupted write leaves the old file.
	if err := os.WriteFile(l.file+".new", data, 0o644); err != nil {
		return fmt.Errorf("keep the results: %w", err)
	}
	if err := os.Rename(l.file+".new", l.file); err != nil {
		return fmt.Errorf("keep the results: %w", err)
	}
	return l.writeJUnit()
}

func (l *ledger) writeJUnit() error {
	report := types.Report{SuiteDescription: "Conformance of Kubernetes " + l.Kubernetes + " on " + strconv.Itoa(l.Nodes) + " nodes", SuiteSucceeded: true}
	for _, name := range slices.Sorted(maps.Keys(l.Results)) {
		r := l.Results[name]
		var state types.SpecState
		if err := state.UnmarshalJSON([]byte(strconv.Quote(r.State))); err != nil {
			return fmt.Errorf("state of %s: %w", name, err)
		}
		report.SuiteSucceeded = report.SuiteSucceeded && !r.failed()
		report.RunTime += seconds(r.Seconds)
		report.SpecReports = append(report.SpecReports, types.SpecReport{
			LeafNodeType: types.NodeTypeIt, LeafNodeText: name, State: state, RunTime: seconds(r.Seconds), Failure: types.Failure{Message: r.Message},
		})
	}
	return reporters.GenerateJUnitReport(report, l.junit)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// runOnNodes runs the tests that have not passed on real nodes.
func (s *suite) runOnNodes(ctx context.Context, module, version string, names []string, o options, stdout, stderr io.Writer) (err error) {
	dir := filepath.Dir(s.e2e)
	l, err := openLedger(dir, version, o)
	if err != nil {
		return err
	}
	known, err := readFailing(filepath.Join(module, "lists"), names)
	if err != nil {
		return err
	}
	wanted, err := focused(names, o.focus)
	if err != nil {
		return err
	}
	if len(wanted) == 0 {
		return fmt.Errorf("-focus %s: no Conformance test has that in its name", o.focus)
	}
	left := l.left(wanted)
	fmt.Fprintf(stderr, "%d of %d tests have passed before\n", len(wanted)-len(left), len(wanted))
	if len(left) > 0 {
		if err := s.onNodes(ctx, module, dir, left, o, l, stderr); err != nil {
			return err
		}
	}
	rep := report{Kubernetes: version, Tests: len(names), Failing: known}
	rep.add(&list{Name: "real nodes"}, slices.Collect(func(yield func(result) bool) {
		for _, name := range wanted {
			if r, ok := l.Results[name]; ok && !yield(r) {
				return
			}
		}
	}), seconds(l.Seconds))
	if o.output == "json" {
		if err := json.NewEncoder(stdout).Encode(rep); err != nil {
			return err
		}
	} else {
		rep.print(stdout)
	}
	return rep.verdict()
}

// onNodes brings nodes up, runs the tests in batches, and takes the nodes away.
func (s *suite) onNodes(ctx context.Context, module, dir string, tests []string, o options, l *ledger, stderr io.Writer) (err error) {
	nodes := func(ctx context.Context, args ...string) *exec.Cmd {
		cmd := child(ctx, append([]string{filepath.Join(module, "..", "scripts", "nodes")}, args...)...)
		cmd.Env = append(os.Environ(), "KARVE="+s.karve, "KARVE_NODES_DIR="+filepath.Join(dir, "nodes"), "KARVE_NODES_SUITE=1",
			// As with simulated nodes, two intervals that tests wait for.
			"KARVE_NODES_OPTIONS=--kube-apiserver-arg etcd-compaction-interval=30s --kube-controller-manager-arg resource-quota-sync-period=30s")
		cmd.Stderr = stderr
		return cmd
	}
	defer func() {
		if down := nodes(context.Background(), "down").Run(); down != nil {
			err = errors.Join(err, fmt.Errorf("take the nodes away: %w", down))
		}
	}()
	if err := nodes(ctx, "up", strconv.Itoa(o.nodes)).Run(); err != nil {
		return fmt.Errorf("start nodes: %w", err)
	}
	work, err := os.MkdirTemp("", "karve-conformance-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	config, err := nodes(ctx, "kubeconfig").Output()
	if err != nil {
		return fmt.Errorf("get a kubeconfig: %w", err)
	}
	kubeconfig := filepath.Join(work, "kubeconfig")
	if err := os.WriteFile(kubeconfig, config, 0o600); err != nil {
		return err
	}
	mode := os.O_CREATE | os.O_APPEND | os.O_WRONLY
	if o.fresh {
		mode |= os.O_TRUNC
	}
	log, err := os.OpenFile(filepath.Join(dir, "nodes.log"), mode, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	s.output = log
	// The tests reach the machines in the server's network only.
	var prefix []string
	inNetwork := nodes(ctx, "network", "server")
	prefix = append(prefix, "env", "KARVE_NODES_DIR="+filepath.Join(dir, "nodes"))
	prefix = append(prefix, inNetwork.Args...)
	done := 0
	for i, batch := range batches(tests, o.batch) {
		o := o
		if isSerial(batch[0]) {
			o.procs = 1
		}
		fmt.Fprintf(stderr, "run tests %d to %d of %d on %d nodes, %d at a time\n", done+1, done+len(batch), len(tests), o.nodes, o.procs)
		done += len(batch)
		began := time.Now()
		dir := filepath.Join(work, strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		results, err := s.runTests(ctx, prefix, dir, kubeconfig, batch, o, "--num-nodes="+strconv.Itoa(o.nodes), "--dump-logs-on-failure")
		if err != nil {
			return err
		}
		if err := l.keep(results, time.Since(began)); err != nil {
			return err
		}
		for _, r := range results {
			if r.failed() {
				fmt.Fprintf(stderr, "%s: %s\n", r.State, r.Name)
			}
		}
		fmt.Fprintf(stderr, "%.0f s\n", time.Since(began).Seconds())
	}
	return nil
}
