package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/karve-k8s/karve/test/bench/machine"
)

// Values of -against that do not name a binary.
const (
	againstEtcd = "etcd"
	againstNone = "none"
)

// A comparison measures Karve and a peer in turn, for a number of rounds.
type comparison struct {
	name     string
	machine  string
	setting  string // what was measured
	notes    string
	rounds   int
	samples  []*sample
	peers    []*peer // Karve is the last
	only     []string
	record   string // the file that gets every figure; empty: none
	args     []string
	profiles string // directory; empty: none
	group    int64  // MiB
	dir      string
	karve    string
	against  string
	kwok     bool // karve with its nodes is measured, too
	// upstream are deviations to switch off in the karve that is compared with.
	upstream string
	// datastores are what is compared, if it is not programs: one karve on each.
	datastores []*userDatabase
	storage    bool // programs that are an etcd are compared
	flags      *flag.FlagSet
	stdout     io.Writer
	stderr     io.Writer
}

// newComparison returns a comparison with the options that all benchmarks share. rows are what -only can name.
func newComparison(name string, rounds int, rows []string, stdout, stderr io.Writer) *comparison {
	cmp := &comparison{name: name, only: rows, flags: flag.NewFlagSet(name, flag.ContinueOnError), stdout: stdout, stderr: stderr}
	cmp.flags.SetOutput(stderr)
	cmp.flags.StringVar(&cmp.record, "record", "", "`FILE` that gets every figure in Go's benchmark format, for benchstat")
	cmp.flags.IntVar(&cmp.rounds, "rounds", rounds, "rounds; the table has their medians")
	cmp.flags.StringVar(&cmp.dir, "dir", "", "directory on the disk to measure (default: the one for temporary files)")
	cmp.flags.StringVar(&cmp.karve, "karve", "", "binary to measure (default: a build of this tree)")
	cmp.flags.StringVar(&cmp.against, "against", againstEtcd, "what to compare with: etcd (with kube-apiserver), none, or another karve binary")
	cmp.flags.StringVar(&cmp.upstream, "upstream", "", "compare with the same karve with --upstream=`NAMES`: what these deviations gain (karve server --upstream=list)")
	cmp.flags.Int64Var(&cmp.group, "group", 0, "run each control plane in a control group of so many `MiB` without swap; it fails if one does not live. Needs root")
	cmp.flags.Func("only", "comma-separated rows to measure (default all): "+strings.Join(rows, ","), func(only string) error {
		cmp.only = strings.Split(only, ",")
		for _, row := range cmp.only {
			if !slices.Contains(rows, row) {
				return fmt.Errorf("there is no row %q", row)
			}
		}
		return nil
	})
	return cmp
}

// parse reads the options.
func (cmp *comparison) parse(args []string) error {
	if err := cmp.flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	if cmp.flags.NArg() > 0 {
		return fmt.Errorf("%s takes no argument %q", cmp.name, cmp.flags.Arg(0))
	}
	if cmp.upstream != "" {
		cmp.against = againstNone
	}
	cmp.args = args
	if cmp.rounds < 1 || cmp.rounds > 100 {
		return fmt.Errorf("-rounds is %d, want 1 to 100", cmp.rounds)
	}
	for flag, binary := range map[string]string{"-karve": cmp.karve, "-against": cmp.against} {
		if binary == "" || flag == "-against" && (binary == againstEtcd || binary == againstNone) {
			continue
		}
		if _, err := exec.LookPath(binary); err != nil {
			return fmt.Errorf("%s: %w", flag, err)
		}
	}
	if cmp.record != "" { // an error after the measurement would be too late
		f, err := os.OpenFile(cmp.record, os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return fmt.Errorf("-record: %w", err)
		}
		return f.Close()
	}
	return nil
}

// refuse returns an error if an option was set that means nothing to the command.
func (cmp *comparison) refuse(names ...string) (err error) {
	cmp.flags.Visit(func(f *flag.Flag) {
		if slices.Contains(names, f.Name) {
			err = fmt.Errorf("%s does not take -%s", cmp.name, f.Name)
		}
	})
	return err
}

// wants reports whether a row is to be measured.
func (cmp *comparison) wants(row string) bool { return slices.Contains(cmp.only, row) }

// run builds the binaries, measures every round and prints the figures. A peer that fails leaves
// a gap in the table; the other rounds go on.
func (cmp *comparison) run(ctx context.Context, measure func(ctx context.Context, p *peer, dir string, s *sample) error) error {
	work, err := machine.WorkDir(cmp.dir)
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := cmp.choosePeers(ctx, filepath.Join(work, "pki")); err != nil {
		return err
	}
	if cmp.machine, err = machine.Describe(work); err != nil {
		return err
	}
	for _, p := range cmp.peers {
		p.group = cmp.group
		for i := 0; i < len(p.binaries) && p.group > 0; i++ { // a group does not pay for pages that are in the page cache
			if _, err := os.ReadFile(p.binaries[i]); err != nil {
				return err
			}
		}
	}

	var failed []error
	for n := 1; n <= cmp.rounds; n++ {
		order := slices.Clone(cmp.peers)
		if n%2 == 0 { // the first of a round leaves its traces in caches and on the disk
			slices.Reverse(order)
		}
		for _, p := range order {
			s := &sample{peer: p, round: n, log: cmp.stderr}
			err := cmp.measureOne(ctx, work, p, s, measure)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil {
				err = fmt.Errorf("round %d: %s: %w", n, p.title, err)
				fmt.Fprintln(cmp.stderr, "bench:", err)
				failed = append(failed, err)
				continue
			}
			cmp.samples = append(cmp.samples, s)
		}
	}
	cmp.print()
	if cmp.record != "" {
		failed = append(failed, cmp.writeRecord())
	}
	return errors.Join(failed...)
}

// choosePeers builds the binaries.
func (cmp *comparison) choosePeers(ctx context.Context, pki string) (err error) {
	if cmp.karve, err = chosenKarve(ctx, cmp.karve, cmp.stderr); err != nil {
		return err
	}
	if cmp.datastores != nil {
		for _, database := range cmp.datastores {
			p := karve(database.title, cmp.karve, database)
			p.name = database.name
			cmp.peers = append(cmp.peers, p)
		}
		return nil
	}
	switch cmp.against {
	case againstNone:
	case againstEtcd:
		etcd, err := buildPeer(ctx, cmp.stderr, "etcd", etcdPackage, "")
		if err != nil {
			return err
		}
		if cmp.storage {
			cmp.peers = append(cmp.peers, etcdProgram("etcd", "etcd", etcd))
			break
		}
		server, err := buildPeer(ctx, cmp.stderr, "kube-apiserver", kubeAPIServerPackage, "-X k8s.io/component-base/version.gitVersion="+kubernetesVersion)
		if err != nil {
			return err
		}
		cmp.peers = append(cmp.peers, etcdAndKubeAPIServer(etcd, server, pki))
	default:
		binary, err := filepath.Abs(cmp.against)
		if err != nil {
			return err
		}
		before := cmp.server(cmp.against, binary)
		before.name = "before"
		cmp.peers = append(cmp.peers, before)
	}
	if cmp.kwok {
		p := karve("karve + kwok's nodes", cmp.karve, nil)
		if p.kwok, err = buildKwok(ctx, cmp.stderr); err != nil {
			return err
		}
		p.name, p.version, p.binaries = "kwok", p.version+" kwok "+kwokVersion, append(p.binaries, p.kwok.binary)
		cmp.peers = append(cmp.peers, p)
	}
	if cmp.upstream != "" {
		option := "--upstream=" + cmp.upstream
		before := karve(option, cmp.karve, nil, option)
		before.name = "upstream"
		cmp.peers = append(cmp.peers, before)
	}
	cmp.peers = append(cmp.peers, cmp.server("karve", cmp.karve))
	return nil
}

// server is Karve, as the command measures it.
func (cmp *comparison) server(title, binary string) *peer {
	if cmp.storage {
		return etcdProgram(title, "karve", binary)
	}
	return karve(title, binary, nil)
}

// measureOne measures a peer in an empty directory, and how busy other processes were.
func (cmp *comparison) measureOne(ctx context.Context, work string, p *peer, s *sample, measure func(context.Context, *peer, string, *sample) error) error {
	dir, err := os.MkdirTemp(work, "")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := p.database.start(ctx); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
		defer cancel()
		if err := p.database.stop(ctx); err != nil {
			fmt.Fprintln(cmp.stderr, "bench:", err)
		}
	}()
	runtime.GC() // the peer before has left garbage in the client
	began := time.Now()
	busy, err := machine.BusyTime()
	if err != nil {
		return err
	}
	own := machine.OwnTime()
	if err := measure(ctx, p, dir, s); err != nil {
		return err
	}
	busyAfter, err := machine.BusyTime()
	if err != nil {
		return err
	}
	other := busyAfter - busy - (machine.OwnTime() - own)
	if p.database.external() {
		return nil // whose processes are not this program's
	}
	s.otherLoad = max(0, other.Seconds()/time.Since(began).Seconds()/float64(runtime.NumCPU()))
	return nil
}
