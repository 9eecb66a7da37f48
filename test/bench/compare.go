package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/karve-k8s/karve/test/bench/machine"
	"github.com/karve-k8s/karve/test/bench/report"
)

// Values of -against that do not name a binary.
const (
	againstEtcd = "etcd"
	againstNone = "none"
)

// A comparison measures Karve and a peer in turn, for a number of rounds.
type comparison struct {
	Machine string
	Setting string // what was measured
	Rounds  int
	Samples []*sample

	name    string
	lines   []line // of the table
	notes   string
	peers   []*peer // Karve is the last
	only    []string
	record  string // the file that gets every figure; empty: none
	args    []string
	dir     string
	karve   string
	against string
	// upstream are deviations to switch off in the karve that is compared with.
	upstream string
	// datastores are what is compared, if it is not programs: one karve on each. They have no ratio.
	datastores []*userDatabase
	storage    bool // programs that are an etcd are compared
	flags      *flag.FlagSet
	stdout     io.Writer
	stderr     io.Writer
}

// newComparison returns a comparison with the options that start, footprint and api
// share.
func newComparison(name string, rounds int, rows []string, stdout, stderr io.Writer) (*comparison, *string) {
	cmp := &comparison{name: name, flags: flag.NewFlagSet(name, flag.ContinueOnError), stdout: stdout, stderr: stderr}
	cmp.flags.SetOutput(stderr)
	cmp.flags.StringVar(&cmp.record, "record", "", "`FILE` that gets every figure in Go's benchmark format, for benchstat")
	cmp.flags.IntVar(&cmp.Rounds, "rounds", rounds, "rounds; the table has their medians")
	cmp.flags.StringVar(&cmp.dir, "dir", "", "directory on the disk to measure (default: the one for temporary files)")
	cmp.flags.StringVar(&cmp.karve, "karve", "", "binary to measure (default: a build of this tree)")
	cmp.flags.StringVar(&cmp.against, "against", againstEtcd, "what to compare with: etcd (with kube-apiserver), none, or another karve binary")
	cmp.flags.StringVar(&cmp.upstream, "upstream", "", "compare with the same karve with --upstream=`NAMES`: what these deviations gain (karve server --upstream=list)")
	only := cmp.flags.String("only", "", "comma-separated rows to measure (default all): "+strings.Join(rows, ","))
	return cmp, only
}

// parse reads the options.
func (cmp *comparison) parse(args []string, only *string, rows []string) error {
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
	if cmp.Rounds < 1 || cmp.Rounds > 100 {
		return fmt.Errorf("-rounds is %d, want 1 to 100", cmp.Rounds)
	}
	for flag, binary := range map[string]string{"-karve": cmp.karve, "-against": cmp.against} {
		if binary == "" || flag == "-against" && (binary == againstEtcd || binary == againstNone) {
			continue
		}
		if info, err := os.Stat(binary); err != nil {
			return fmt.Errorf("%s: %w", flag, err)
		} else if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			return fmt.Errorf("%s: %s is not a program", flag, binary)
		}
	}
	cmp.only = rows
	if *only != "" {
		cmp.only = strings.Split(*only, ",")
	}
	for _, row := range cmp.only {
		if !slices.Contains(rows, row) {
			return fmt.Errorf("-only: there is no row %q, only %s", row, strings.Join(rows, ", "))
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
	if cmp.Machine, err = machine.Describe(work); err != nil {
		return err
	}

	var failed []error
	for n := 1; n <= cmp.Rounds; n++ {
		order := slices.Clone(cmp.peers)
		if n%2 == 0 { // the first of a round leaves its traces in caches and on the disk
			slices.Reverse(order)
		}
		for _, p := range order {
			s := &sample{Peer: p.title, Round: n}
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
			cmp.Samples = append(cmp.Samples, s)
		}
	}
	cmp.print()
	if cmp.record != "" {
		var text strings.Builder
		if err := cmp.recorded().Write(&text); err != nil {
			failed = append(failed, err)
		} else if err := os.WriteFile(cmp.record, []byte(text.String()), 0o644); err != nil {
			failed = append(failed, fmt.Errorf("-record: %w", err))
		}
	}
	return errors.Join(failed...)
}

// recorded is every figure, with remarks on the run.
func (cmp *comparison) recorded() *report.Record {
	name := strings.ToUpper(cmp.name[:1]) + cmp.name[1:]
	if cmp.name == "api" {
		name = "API"
	}
	r := &report.Record{Benchmark: name, CPU: machine.Processor()}
	r.Remark("command", "scripts/bench "+strings.Join(append([]string{cmp.name}, cmp.args...), " "))
	r.Remark("date", time.Now().UTC().Format(time.DateOnly))
	r.Remark("machine", cmp.Machine)
	if most := cmp.otherLoad(); most > report.Quiet {
		r.Remark("disturbed", fmt.Sprintf("other processes used up to %.0f %% of the machine", 100*most))
	}
	if cmp.datastores == nil {
		r.Remark("peers", peerVersions())
	}
	r.Remark("setting", cmp.Setting)
	for _, p := range cmp.peers {
		if p.database.external() {
			p.version = p.database.version
		}
		r.Remark(p.name, p.version)
	}
	for _, s := range cmp.Samples {
		name := s.Peer
		for _, p := range cmp.peers {
			if p.title == s.Peer {
				name = p.name
			}
		}
		for _, f := range s.Figures {
			r.Add(f.Row, name, f.Amount, f.Unit)
		}
	}
	return r
}

// otherLoad is the largest part of the machine that was busy with something else.
func (cmp *comparison) otherLoad() (most float64) {
	for _, s := range cmp.Samples {
		most = max(most, s.OtherLoad)
	}
	return most
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
	if p.database != nil {
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
	}
	runtime.GC() // the peer before has left garbage in the client
	began := time.Now()
	busy, err := machine.BusyTime()
	if err != nil {
		return err
	}
	own, database := machine.OwnTime(), p.database.cpu()
	if err := measure(ctx, p, dir, s); err != nil {
		return err
	}
	busyAfter, err := machine.BusyTime()
	if err != nil {
		return err
	}
	other := busyAfter - busy - (machine.OwnTime() - own) - (p.database.cpu() - database)
	s.OtherLoad = max(0, other.Seconds()/time.Since(began).Seconds()/float64(runtime.NumCPU()))
	return nil
}

// progress prints the figures from index since on, a line for each row.
func (cmp *comparison) progress(p *peer, s *sample, since int) {
	var row string
	var figures []string
	flush := func() {
		if figures != nil {
			fmt.Fprintf(cmp.stderr, "round %d/%d  %-22s %-41s %s\n", s.Round, cmp.Rounds, p.title, row, strings.Join(figures, ", "))
		}
	}
	for _, f := range s.Figures[since:] {
		if f.Row != row {
			flush()
			row, figures = f.Row, nil
		}
		figures = append(figures, strings.TrimSpace(report.Number(f.Amount)+" "+f.Unit))
	}
	flush()
}
