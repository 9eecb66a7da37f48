package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
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

	"github.com/karve-k8s/karve/test/bench/machine"
	"github.com/karve-k8s/karve/test/bench/report"
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
	flags := flag.NewFlagSet("flash", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var out report.Output
	out.Register(flags)
	dir := flags.String("dir", "", "directory on a disk (default: the one for temporary files)")
	binary := flags.String("karve", "", "binary to measure (default: a build of this tree)")
	nodes := flags.String("nodes", "0,1,3,10", "comma-separated numbers of nodes")
	pods := flags.Int("pods", 3, "Pods on each node; the container of one of them crashes again and again")
	durability := flags.String("durability", strings.Join(flashModes, ","), "comma-separated modes of the datastore")
	lease := flags.Duration("lease-duration", defaultLease, "nodeLeaseDurationSeconds of the kubelets, which renew their leases four times as often")
	status := flags.Duration("status-frequency", defaultStatus, "nodeStatusReportFrequency of the kubelets: how often they report a status that has not changed")
	settle := flags.Duration("settle", 11*time.Minute, "how long the control planes run before they are measured; the API server compacts for the first time after ten minutes")
	window := flags.Duration("window", 10*time.Minute, "how long they are measured")
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	if flags.NArg() > 0 || *settle < 0 || *window <= 0 || *pods < 0 || *pods > 100 {
		return fmt.Errorf("flash: -settle is %v, -window %v, -pods %d, and there are %d arguments; want times, 0 to 100 and none", *settle, *window, *pods, flags.NArg())
	}
	if *lease < leaseRenewals*time.Second || *lease%time.Second != 0 || *status < time.Second {
		return fmt.Errorf("flash: -lease-duration is %v and -status-frequency %v; want full seconds, %v or more, and 1s or more", *lease, *status, leaseRenewals*time.Second)
	}
	modes := strings.Split(*durability, ",")
	for _, mode := range modes {
		if !slices.Contains(flashModes, mode) {
			return fmt.Errorf("-durability: %q is none of %s", mode, strings.Join(flashModes, ", "))
		}
	}
	if err := out.Check(); err != nil {
		return err
	}
	work, machine, err := machine.WorkPlace(*dir)
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if *binary, err = chosenKarve(ctx, *binary, stderr); err != nil {
		return err
	}
	var all []*flashCluster
	defer func() {
		for _, w := range all {
			w.end()
		}
	}()
	for text := range strings.SplitSeq(*nodes, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 1000 {
			return fmt.Errorf("-nodes: %q is not a number of nodes from 0 to 1000", text)
		}
		for _, mode := range modes {
			w := &flashCluster{mode: mode, nodes: n, lease: *lease, statusEvery: *status, pods: *pods, dir: filepath.Join(work, mode+text)}
			all = append(all, w)
			if err := w.begin(ctx, *binary, stderr); err != nil {
				return fmt.Errorf("%s with %d nodes: %w", mode, n, err)
			}
		}
	}
	// All clusters run at the same time, because the writes of each are counted apart.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	run := func(w *flashCluster, what func(context.Context) error) {
		go func() {
			if err := what(ctx); err != nil {
				select {
				case failed <- fmt.Errorf("%s with %d nodes: %w", w.mode, w.nodes, err):
				default:
				}
			}
		}()
	}
	for _, w := range all {
		if err := w.start(ctx, run); err != nil {
			return fmt.Errorf("%s with %d nodes: %w", w.mode, w.nodes, err)
		}
	}
	wait := func(d time.Duration) error {
		select {
		case err := <-failed:
			return err
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := wait(*settle); err != nil {
		return err
	}
	for _, w := range all {
		if err := w.look(ctx, &w.before); err != nil {
			return err
		}
	}
	if err := wait(*window); err != nil {
		return err
	}
	for _, w := range all {
		if err := w.look(ctx, &w.after); err != nil {
			return err
		}
	}
	load := fmt.Sprintf("nodes renew a lease every %v and report their status every %v", *lease/leaseRenewals, *status)
	if *pods > 0 {
		load += fmt.Sprintf(";\neach has Pods (%d), and the container of one of them crashes every %v", *pods, crashEvery)
	}
	rep := &report.LineReport{
		Head:    fmt.Sprintf("%s\n%s;\nmeasured for %v, after %v, and multiplied to a day\n", machine, load, *window, *settle),
		Lines:   report.Table{{"nodes", "durability", "commits/min", "by karve, MB/day", "per node", "by the disk, MB/day", "per node", "flushes/min"}},
		Figures: report.NewRecord("flash", machine, args, 0),
	}
	for _, w := range all {
		rep.Lines = append(rep.Lines, w.line(rep.Figures))
	}
	if all[0].device == "" {
		rep.Foot += "\nby the disk: only root can measure it, with a disk for each control plane\n"
	}
	return out.Write(stdout, rep)
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
func (w *flashCluster) begin(ctx context.Context, binary string, stderr io.Writer) error {
	if err := os.Mkdir(w.dir, 0o700); err != nil {
		return err
	}
	if err := w.mount(ctx); err != nil {
		fmt.Fprintf(stderr, "flash: no disk of its own: %v\n", err)
	}
	var err error
	w.cluster, w.probe, err = karve("karve", binary, nil).startReady(ctx, w.dir, "--durability", w.mode)
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
func (w *flashCluster) start(ctx context.Context, run func(*flashCluster, func(context.Context) error)) error {
	run(w, w.kubelets)
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
			run(w, func(ctx context.Context) error { return p.crash(ctx, n, crashing) })
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

// line returns the cells of the table, and adds their figures to the record.
func (w *flashCluster) line(figures *report.Record) []string {
	took := w.after.at.Sub(w.before.at)
	row := fmt.Sprintf("%d nodes, %s", w.nodes, w.mode)
	cell := func(row, unit string, amount float64) string {
		figures.Add(row, "karve", amount, unit)
		return fmt.Sprintf("%.0f", amount)
	}
	day := func(bytes float64) float64 { return bytes / 1e6 * float64(24*time.Hour) / float64(took) }
	perNode := func(row string, day float64) string {
		if w.nodes == 0 {
			return ""
		}
		return cell(row+", per node", "MB/day", day/float64(w.nodes))
	}
	byKarve := day(w.after.process - w.before.process)
	line := []string{strconv.Itoa(w.nodes), w.mode,
		cell(row, "/min", (w.after.commits-w.before.commits)/took.Minutes()),
		cell(row, "MB/day", byKarve), perNode(row, byKarve)}
	if w.device == "" {
		return append(line, "", "", "")
	}
	byDisk := day(w.after.disk - w.before.disk)
	return append(line,
		cell(row+", by the disk", "MB/day", byDisk), perNode(row+", by the disk", byDisk),
		cell(row+", by the disk", "flushes/min", (w.after.flushes-w.before.flushes)/took.Minutes()))
}
