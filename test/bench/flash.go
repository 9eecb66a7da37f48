package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What a kubelet writes when nothing happens on its node: it renews its Lease after a quarter of
// nodeLeaseDurationSeconds, and reports its status every nodeStatusReportFrequency. These are the
// defaults.
const (
	defaultLease  = 40 * time.Second
	defaultStatus = 5 * time.Minute
)

// leaseRenewals is how often a kubelet renews its Lease while it lasts.
const leaseRenewals = 4

// flashModes are the values of --durability that can be measured.
var flashModes = []string{"full", "relaxed"}

// flash is the command bench flash: what an idle cluster with nodes writes to the disk in a day.
func flash(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	rows := []string{"all"}
	cmp, only := newComparison("flash", 1, rows, stdout, stderr)
	cmp.against = againstNone
	nodes := cmp.flags.String("nodes", "0,1,3,10", "comma-separated numbers of nodes")
	pods := cmp.flags.Int("pods", 3, "Pods on each node; the container of one of them crashes again and again")
	durability := cmp.flags.String("durability", strings.Join(flashModes, ","), "comma-separated modes of the datastore")
	lease := cmp.flags.Duration("lease-duration", defaultLease, "nodeLeaseDurationSeconds of the kubelets, which renew their leases four times as often")
	status := cmp.flags.Duration("status-frequency", defaultStatus, "nodeStatusReportFrequency of the kubelets: how often they report a status that has not changed")
	settle := cmp.flags.Duration("settle", 11*time.Minute, "how long the control planes run before they are measured; the API server compacts for the first time after ten minutes")
	window := cmp.flags.Duration("window", 10*time.Minute, "how long they are measured")
	if err := cmp.parse(args, only, rows); err != nil {
		return err
	}
	if *settle < 0 || *window <= 0 || *pods < 0 || *pods > 100 || cmp.against == againstEtcd {
		return fmt.Errorf("flash: -settle is %v, -window %v, -pods %d and -against %s; want times, 0 to 100 and a karve", *settle, *window, *pods, cmp.against)
	}
	if *lease < leaseRenewals*time.Second || *lease%time.Second != 0 || *status < time.Second {
		return fmt.Errorf("flash: -lease-duration is %v and -status-frequency %v; want full seconds, %v or more, and 1s or more", *lease, *status, leaseRenewals*time.Second)
	}
	var all []flashCluster
	for text := range strings.SplitSeq(*nodes, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 1000 {
			return fmt.Errorf("-nodes: %q is not a number of nodes from 0 to 1000", text)
		}
		for mode := range strings.SplitSeq(*durability, ",") {
			if !slices.Contains(flashModes, mode) {
				return fmt.Errorf("-durability: %q is none of %s", mode, strings.Join(flashModes, ", "))
			}
			w := flashCluster{mode: mode, nodes: n, lease: *lease, statusEvery: *status, pods: *pods}
			all = append(all, w)
			cmp.lines = append(cmp.lines, w.lines()...)
		}
	}
	cmp.Setting = fmt.Sprintf("nodes renew a lease every %v and report their status every %v; each has Pods (%d), and the container of one crashes every %v; measured for %v, after %v, and multiplied to a day",
		*lease/leaseRenewals, *status, *pods, crashEvery, *window, *settle)
	cmp.notes = "by the disk: only root can measure it, with a disk for each control plane.\n"
	return cmp.run(ctx, func(ctx context.Context, p *peer, dir string, s *sample) error {
		return measureFlash(ctx, p, dir, s, slices.Clone(all), *settle, *window, stderr)
	})
}

// measureFlash runs all clusters at the same time, because the writes of each are counted apart.
func measureFlash(ctx context.Context, p *peer, dir string, s *sample, all []flashCluster, settle, window time.Duration, stderr io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	named := func(w *flashCluster, err error) error {
		if err != nil {
			err = fmt.Errorf("%s: %w", w.row(), err)
		}
		return err
	}
	for i := range all {
		w := &all[i]
		w.dir = filepath.Join(dir, fmt.Sprintf("%s%d", w.mode, w.nodes))
		defer w.end()
		if err := w.begin(ctx, p, stderr); err != nil {
			return named(w, err)
		}
	}
	for i := range all {
		w := &all[i]
		err := w.start(ctx, func(what func(context.Context) error) {
			go func() {
				if err := what(ctx); err != nil {
					cancel(named(w, err))
				}
			}()
		})
		if err != nil {
			return named(w, err)
		}
	}
	if err := pause(ctx, settle); err != nil {
		return err
	}
	for i := range all {
		if err := all[i].look(ctx, &all[i].before); err != nil {
			return err
		}
	}
	if err := pause(ctx, window); err != nil {
		return err
	}
	for i := range all {
		if err := all[i].look(ctx, &all[i].after); err != nil {
			return err
		}
		all[i].figures(s)
	}
	return nil
}

// A flashCluster is a control plane with nodes. As root it has a disk of its own.
type flashCluster struct {
	mode   string
	nodes  int
	lease  time.Duration // of a node
	pods   int           // on each node
	dir    string
	device string // such as loop3; empty: no disk of its own
	image  string

	statusEvery time.Duration

	cluster       *cluster
	probe         *prober
	before, after counters
}

// counters are what was written so far.
type counters struct {
	at                     time.Time
	process, disk, commits float64 // bytes, bytes, number
	flushes                float64
}

// begin makes the disk, starts the control plane and creates the nodes.
func (w *flashCluster) begin(ctx context.Context, p *peer, stderr io.Writer) error {
	if err := os.Mkdir(w.dir, 0o700); err != nil {
		return err
	}
	if err := w.mount(ctx); err != nil {
		fmt.Fprintf(stderr, "flash: no disk of its own: %v\n", err)
	}
	var err error
	w.cluster, w.probe, err = p.startReady(ctx, w.dir, "--durability", w.mode)
	if err != nil {
		return err
	}
	for n := range w.nodes {
		node := fmt.Sprintf(`{"metadata": {"name": %q}}`, nodeName(n))
		if _, err := w.probe.do(ctx, http.MethodPost, "/api/v1/nodes", []byte(node)); err != nil {
			return err
		}
		lease := fmt.Sprintf(`{"metadata": {"name": %q}, "spec": {"holderIdentity": %[1]q, "leaseDurationSeconds": %d}}`, nodeName(n), int(w.lease.Seconds()))
		if _, err := w.probe.do(ctx, http.MethodPost, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", []byte(lease)); err != nil {
			return err
		}
		if err := w.status(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// mount mounts an ext4 with its defaults on a loop device, whose writes the kernel counts.
func (w *flashCluster) mount(ctx context.Context) error {
	if os.Getuid() != 0 {
		return errors.New("not root")
	}
	w.image = w.dir + ".img"
	for _, command := range [][]string{
		{"truncate", "-s", "512M", w.image},
		{"mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", w.image},
		{"mount", "-o", "loop", w.image, w.dir},
	} {
		if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command[0], err, bytes.TrimSpace(out))
		}
	}
	devices, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return err
	}
	for _, file := range devices {
		if text, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(text)) == w.image {
			w.device = strings.Split(file, "/")[3]
			return nil
		}
	}
	return fmt.Errorf("no loop device has %s", w.image)
}

// end stops the control plane and unmounts the disk.
func (w *flashCluster) end() {
	if w.probe != nil {
		w.probe.close()
	}
	if w.cluster != nil {
		w.cluster.kill()
	}
	if w.device != "" {
		exec.Command("umount", w.dir).Run()
	}
}

const nodeNameFormat = "node-%d"

func nodeName(n int) string { return fmt.Sprintf(nodeNameFormat, n) }

// start begins what the nodes write. run runs a part of it in the background.
func (w *flashCluster) start(ctx context.Context, run func(func(context.Context) error)) error {
	run(w.kubelets)
	if w.nodes == 0 || w.pods == 0 {
		return nil
	}
	p, err := newFlashPods(ctx, w.cluster, w.nodes)
	if err != nil {
		return err
	}
	for n := range w.nodes {
		crashing, err := p.create(ctx, n, w.pods)
		if err != nil {
			return err
		}
		if crashing != nil {
			run(func(ctx context.Context) error { return p.crash(ctx, n, crashing) })
		}
	}
	return nil
}

// kubelets writes what the kubelets of the nodes write, spread over the time.
func (w *flashCluster) kubelets(ctx context.Context) error {
	if w.nodes == 0 {
		<-ctx.Done()
		return nil
	}
	begin, leaseEvery := time.Now(), w.lease/leaseRenewals
	perStatus := max(1, int(w.statusEvery/leaseEvery))
	for turn := 0; ; turn++ {
		n := turn % w.nodes
		due := begin.Add(leaseEvery * time.Duration(turn) / time.Duration(w.nodes))
		select {
		case <-time.After(time.Until(due)):
		case <-ctx.Done():
			return nil
		}
		lease := fmt.Sprintf(`{"spec": {"renewTime": %q}}`, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"))
		path := "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + nodeName(n)
		if _, err := w.probe.do(ctx, http.MethodPatch, path, []byte(lease)); err != nil && ctx.Err() == nil {
			return err
		}
		// The status reports are spread over the time as well.
		if turn/w.nodes%perStatus == n*perStatus/w.nodes {
			if err := w.status(ctx, n); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// status reports that a node is ready and has some images.
func (w *flashCluster) status(ctx context.Context, n int) error {
	now := time.Now().UTC().Format(time.RFC3339)
	var conditions, images []string
	for _, name := range []string{"MemoryPressure", "DiskPressure", "PIDPressure", "Ready"} {
		value := "False"
		if name == "Ready" {
			value = "True"
		}
		conditions = append(conditions, fmt.Sprintf(`{"type": %[1]q, "status": %[2]q, "reason": "Kubelet%[1]s", "message": "kubelet says so", "lastHeartbeatTime": %[3]q, "lastTransitionTime": "2026-01-01T00:00:00Z"}`, name, value, now))
	}
	for i := range 20 {
		images = append(images, fmt.Sprintf(`{"names": ["registry.example/image-%d@sha256:%064d", "registry.example/image-%[1]d:v1"], "sizeBytes": 12345678}`, i, i))
	}
	const capacity = `{"cpu": "4", "memory": "4Gi", "pods": "110"}`
	body := fmt.Sprintf(`{"status": {"capacity": `+capacity+`, "allocatable": `+capacity+`, "conditions": [%s], "images": [%s]}}`, strings.Join(conditions, ","), strings.Join(images, ","))
	_, err := w.probe.do(ctx, http.MethodPatch, "/api/v1/nodes/"+nodeName(n)+"/status", []byte(body))
	return err
}

// look reads the counters into into.
func (w *flashCluster) look(ctx context.Context, into *counters) error {
	commits, err := w.cluster.commits(ctx, w.probe)
	if err != nil {
		return err
	}
	used, err := w.cluster.consumption()
	if err != nil {
		return err
	}
	*into = counters{at: time.Now(), process: sum(used.written), commits: commits}
	if w.device == "" {
		return nil
	}
	// Writes that the kernel holds back count too. In iostats.rst, sectors written are the
	// seventh figure and flushes the sixteenth.
	if out, err := exec.CommandContext(ctx, "sync", "-f", w.dir).CombinedOutput(); err != nil {
		return fmt.Errorf("sync: %w: %s", err, out)
	}
	text, err := os.ReadFile("/sys/block/" + w.device + "/stat")
	if err != nil {
		return err
	}
	figures := strings.Fields(string(text))
	if len(figures) < 16 {
		return fmt.Errorf("/sys/block/%s/stat has %d figures, want 16 (Linux 5.5)", w.device, len(figures))
	}
	sectors, err := strconv.ParseFloat(figures[6], 64)
	if err == nil {
		into.flushes, err = strconv.ParseFloat(figures[15], 64)
	}
	into.disk = sectors * 512
	return err
}

func (w *flashCluster) row() string { return fmt.Sprintf("%d nodes, %s", w.nodes, w.mode) }

// byDisk is the row of what the disk has written.
func (w *flashCluster) byDisk() string { return w.row() + ", by the disk" }

func (w *flashCluster) lines() []line {
	return []line{{row: w.row(), unit: "/min"}, {row: w.row(), unit: "MB/day"}, {row: w.byDisk(), unit: "MB/day"}, {row: w.byDisk(), unit: "flushes/min"}}
}

// figures adds what was written between before and after.
func (w *flashCluster) figures(s *sample) {
	took := w.after.at.Sub(w.before.at)
	day := func(bytes float64) float64 { return bytes / 1e6 * float64(24*time.Hour) / float64(took) }
	s.add(w.row(), "/min", (w.after.commits-w.before.commits)/took.Minutes())
	s.add(w.row(), "MB/day", day(w.after.process-w.before.process))
	if w.device != "" {
		s.add(w.byDisk(), "MB/day", day(w.after.disk-w.before.disk))
		s.add(w.byDisk(), "flushes/min", (w.after.flushes-w.before.flushes)/took.Minutes())
	}
}
