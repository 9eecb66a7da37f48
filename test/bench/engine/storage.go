package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/version"

	"github.com/karve-k8s/karve/test/bench/load"
	"github.com/karve-k8s/karve/test/bench/machine"
	"github.com/karve-k8s/karve/test/bench/report"
)

// peers are the columns of the table, in the order of the measurement.
var peers = []struct{ role, title string }{
	{roleDirect, "karve Go API"},
	{roleClient, "karve client"},
	{"karve-socket", "karve socket"},
	{"etcd", "etcd " + version.Version},
}

// A storageReport has every figure of a run.
type storageReport struct {
	Machine  string    `json:"machine"`
	Plan     plan      `json:"plan"`
	FsyncP50 []float64 `json:"fsync_p50_ms"` // one 1 KB append, for each round
	FsyncP99 []float64 `json:"fsync_p99_ms"`
	Rounds   []*round  `json:"rounds"`

	roles []string // of the peers that were measured
	args  []string
}

// Storage is the command bench storage.
func Storage(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := newOptions("storage", "one round of fewer operations; takes less than a minute", stderr)
	rounds := o.flags.Int("rounds", 0, "rounds; the table has their medians (default 3, with -quick 1)")
	chosen := o.flags.String("peers", "", "comma-separated peers to measure (default all): karve,karve-client,karve-socket,etcd")
	if err := o.parse(args); err != nil {
		return err
	}
	if *rounds < 0 || *rounds > 20 {
		return fmt.Errorf("-rounds is %d, want 1 to 20", *rounds)
	}
	roles, err := choose(*chosen)
	if err != nil {
		return err
	}

	p, most := plan{Keys: 3000, Part: 1, Most: 3 * time.Second}, 3*time.Minute
	if o.quick {
		p, most = plan{Keys: 1200, Part: 5, Most: 500 * time.Millisecond}, 30*time.Second
	}
	if *rounds == 0 {
		*rounds = 3
		if o.quick {
			*rounds = 1
		}
	}

	work, err := machine.WorkDir(o.dir)
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)

	rep := &storageReport{
		Machine: fmt.Sprintf("%d cores, %s, %s/%s", runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH),
		Plan:    p,
		roles:   roles,
		args:    args,
	}
	failed := rep.measure(ctx, *rounds, most, work, stderr)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(o.Write(stdout, rep), failed)
}

// choose parses a list of roles. The empty list means all of them.
func choose(list string) ([]string, error) {
	var all, roles []string
	for _, p := range peers {
		all = append(all, p.role)
	}
	if list == "" {
		return all, nil
	}
	for role := range strings.SplitSeq(list, ",") {
		if !slices.Contains(all, role) {
			return nil, fmt.Errorf("unknown peer %q, want one of %s", role, strings.Join(all, ", "))
		}
		if !slices.Contains(roles, role) {
			roles = append(roles, role)
		}
	}
	return roles, nil
}

// measure runs the rounds. Each round measures all peers one after the other, so that a machine
// that becomes slower is slower for all of them. A peer that fails leaves a gap in the table;
// the other peers go on.
func (rep *storageReport) measure(ctx context.Context, rounds int, most time.Duration, work string, stderr io.Writer) error {
	var failed []error
	for n := 1; n <= rounds; n++ {
		p50, p99, err := machine.ProbeDisk(work)
		if err != nil {
			return fmt.Errorf("probe disk: %w", err)
		}
		rep.FsyncP50, rep.FsyncP99 = append(rep.FsyncP50, p50), append(rep.FsyncP99, p99)
		for _, role := range rep.roles {
			progress := func(r load.Result) {
				fmt.Fprintf(stderr, "round %d/%d  %-13s %-28s %12s/s  p50 %s ms  p99 %s ms\n",
					n, rounds, role, r.Row, report.Number(r.PerSecond), report.Number(r.P50), report.Number(r.P99))
			}
			r, err := measurePeer(ctx, role, rep.Plan, most, work, progress, stderr)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil {
				err = fmt.Errorf("round %d: %s: %w", n, role, err)
				fmt.Fprintln(stderr, "bench:", err)
				failed = append(failed, err)
				continue
			}
			r.Peer, r.Round = role, n
			rep.Rounds = append(rep.Rounds, r)
		}
	}
	return errors.Join(failed...)
}

// measurePeer starts a peer on an empty directory, measures every row and stops the peer.
func measurePeer(ctx context.Context, role string, p plan, most time.Duration, work string, progress func(load.Result), stderr io.Writer) (*round, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("not done after %v", most))
	defer cancel()
	dir, err := os.MkdirTemp(work, "")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	c, err := startChild(ctx, role, dir, p, stderr)
	if err != nil {
		return nil, err
	}
	defer c.stop()

	for {
		m, err := c.read()
		if err != nil {
			return nil, errors.Join(context.Cause(ctx), err)
		}
		switch {
		case m.Row != nil:
			progress(*m.Row)
		case m.Round != nil:
			return m.Round, nil
		default:
			s, hangUp, err := dial(m.Endpoint)
			if err != nil {
				return nil, err
			}
			defer hangUp()
			if _, err := s.count(ctx, keyPrefix); err != nil { // which waits for the connection
				return nil, fmt.Errorf("reach peer: %w", err)
			}
			b := &bench{store: s, plan: p, peer: c.cmd.Process.Pid, dir: dir, file: files[role], progress: progress}
			return b.measure(ctx)
		}
	}
}
