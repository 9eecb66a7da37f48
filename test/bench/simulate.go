package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/karve-k8s/karve/test/bench/load"
	"github.com/karve-k8s/karve/test/bench/machine"
	"github.com/karve-k8s/karve/test/bench/report"
)

// podsOfDeployment is how many Pods a Deployment has.
const podsOfDeployment = 100

// simulate is the command bench simulate: the cost of simulated nodes and the Pods on them.
func simulate(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("simulate", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var out report.Output
	out.Register(flags)
	dir := flags.String("dir", "", "directory on a disk (default: the one for temporary files)")
	binary := flags.String("karve", "", "binary to measure (default: a build of this tree)")
	sizes := flags.String("nodes", "0,100,1000", "comma-separated numbers of nodes, one cluster after the other")
	endpoint := flags.String("datastore-endpoint", "memory://", "datastore of the clusters; the default is that of karve run")
	perNode := flags.Int("pods", 10, "Pods for each node, in Deployments of "+strconv.Itoa(podsOfDeployment))
	settle := flags.Duration("settle", 20*time.Second, "how long a cluster runs before its memory and idle CPU are measured")
	window := flags.Duration("window", 30*time.Second, "how long it is measured")
	upstream := flags.String("upstream", "", "measure each cluster also with --upstream=`NAMES`: what these deviations gain (karve server --upstream=list)")
	most := flags.Duration("most", 10*time.Minute, "how long the Pods may take to become available, and to be gone")
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	if flags.NArg() > 0 || *settle < 0 || *window <= 0 || *perNode < 1 || *perNode > 100 {
		return fmt.Errorf("simulate: -settle is %v, -window %v, -pods %d, and there are %d arguments; want times, 1 to 100 and none", *settle, *window, *perNode, flags.NArg())
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
	figures := report.NewRecord("simulate", machine, args, 0)
	peers := []simulatedPeer{{name: "karve"}}
	if *upstream != "" {
		peers = []simulatedPeer{{"upstream", []string{"--upstream=" + *upstream}}, {name: "karve"}}
	}
	lines := report.Table{{"nodes", "Pods", "peer", "ready, s", "memory, MB", "idle CPU, %", "all run, s", "Pods/s", "CPU, s", "CPU, ms/Pod", "peak, MB", "memory, MB", "idle CPU, %", "gone, s"}}
	for text := range strings.SplitSeq(*sizes, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 16384 {
			return fmt.Errorf("-nodes: %q is not a number of nodes from 0 to 16384", text)
		}
		for _, peer := range peers {
			s := &simulated{peer: peer, nodes: n, pods: n * *perNode, endpoint: *endpoint, settle: *settle, window: *window, most: *most, stderr: stderr, figures: figures}
			line, err := s.measure(ctx, *binary, filepath.Join(work, text+peer.name))
			if err != nil {
				return fmt.Errorf("%s, %d nodes: %w", peer.name, n, err)
			}
			lines = append(lines, line)
		}
	}
	return out.Write(stdout, &report.LineReport{Head: fmt.Sprintf("%s; %s\nready: from the start of the process until all nodes are ready; memory is anonymous, and idle CPU is of one core, in %v,\n%v after the nodes, or all Pods, were ready; all run: from the first Deployment of %d Pods until all Pods are available;\nCPU: the server's CPU time in that time; peak: of its resident memory by then; gone: until their namespace is deleted\n", machine, *endpoint, *window, *settle, podsOfDeployment), Lines: lines, Figures: figures})
}

// simulatedPeer is Karve with some options.
type simulatedPeer struct {
	name    string
	options []string
}

// simulated is a cluster with simulated nodes.
type simulated struct {
	peer                 simulatedPeer
	nodes, pods          int
	endpoint             string
	settle, window, most time.Duration
	stderr               io.Writer
	figures              *report.Record

	cluster *cluster
	probe   *prober
}

func (s *simulated) measure(ctx context.Context, binary, dir string) (line []string, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	began := time.Now()
	options := append([]string{"--simulate-nodes", strconv.Itoa(s.nodes), "--datastore-endpoint", s.endpoint}, s.peer.options...)
	if s.cluster, s.probe, err = karve("karve", binary, nil, options...).startReady(ctx, dir); err != nil {
		return nil, err
	}
	defer s.cluster.kill()
	defer s.probe.close()
	if err := s.wait(ctx, s.nodesReady); err != nil {
		return nil, err
	}
	line = []string{strconv.Itoa(s.nodes), strconv.Itoa(s.pods), s.peer.name, s.seconds("nodes ready", time.Since(began))}
	idle, err := s.idle(ctx, "idle without Pods")
	if err != nil {
		return nil, err
	}
	line = append(line, idle...)
	if s.pods == 0 {
		return append(line, "", "", "", "", "", "", "", ""), nil
	}
	before, err := s.cluster.cpu()
	if err != nil {
		return nil, err
	}
	began = time.Now()
	if err := s.create(ctx); err != nil {
		return nil, err
	}
	if err := s.wait(ctx, s.available); err != nil {
		return nil, err
	}
	took := time.Since(began)
	after, err := s.cluster.cpu()
	if err != nil {
		return nil, err
	}
	peaks, err := s.cluster.each(machine.PeakMemory)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(s.stderr, "%s, %d nodes: %d Pods run after %v\n", s.peer.name, s.nodes, s.pods, took.Round(100*time.Millisecond))
	cpu, peak := load.Milliseconds(after-before)/float64(s.pods), sum(peaks)/1e6
	s.add("all Pods available", 1e3*cpu, "server µs each")
	s.add("peak memory", peak, "MB")
	line = append(line, s.seconds("all Pods available", took), fmt.Sprintf("%.0f", float64(s.pods)/took.Seconds()), fmt.Sprintf("%.1f", (after-before).Seconds()), fmt.Sprintf("%.1f", cpu), fmt.Sprintf("%.0f", peak))
	if idle, err = s.idle(ctx, "idle with Pods"); err != nil {
		return nil, err
	}
	began = time.Now()
	if _, err := s.probe.do(ctx, http.MethodDelete, "/api/v1/namespaces/bench", nil); err != nil {
		return nil, err
	}
	err = s.wait(ctx, func() (bool, error) {
		_, err := s.probe.do(ctx, http.MethodGet, "/api/v1/namespaces/bench", nil)
		return err != nil && strings.Contains(err.Error(), "404"), nil
	})
	if err != nil {
		return nil, err
	}
	return append(append(line, idle...), s.seconds("namespace gone", time.Since(began))), nil
}

// add adds a figure of these nodes to the record.
func (s *simulated) add(row string, amount float64, unit string) {
	s.figures.Add(fmt.Sprintf("%d nodes, %s", s.nodes, row), s.peer.name, amount, unit)
}

// seconds returns the cell of a time, and adds the time to the record.
func (s *simulated) seconds(row string, d time.Duration) string {
	s.add(row, d.Seconds(), "s")
	return fmt.Sprintf("%.1f", d.Seconds())
}

// wait calls done twice a second until it reports true. More often would cost the server
// CPU time.
func (s *simulated) wait(ctx context.Context, done func() (bool, error)) error {
	for deadline := time.Now().Add(s.most); ; {
		ok, err := done()
		if err != nil || ok {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not done after %v", s.most)
		}
		if err := s.cluster.failed(); err != nil {
			return err
		}
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
}

// nodesReady reports whether all nodes exist and the scheduler can use them.
func (s *simulated) nodesReady() (bool, error) {
	var list struct {
		Items []struct {
			Spec struct{ Taints []any }
		}
	}
	if err := s.list("/api/v1/nodes", &list); err != nil {
		return false, err
	}
	ready := 0
	for _, n := range list.Items {
		if len(n.Spec.Taints) == 0 {
			ready++
		}
	}
	return ready == s.nodes, nil
}

// available reports whether all Pods of all Deployments are available.
func (s *simulated) available() (bool, error) {
	var list struct {
		Items []struct {
			Status struct{ AvailableReplicas int }
		}
	}
	if err := s.list("/apis/apps/v1/namespaces/bench/deployments", &list); err != nil {
		return false, err
	}
	total := 0
	for _, d := range list.Items {
		total += d.Status.AvailableReplicas
	}
	return total == s.pods, nil
}

func (s *simulated) list(path string, into any) error {
	answer, err := s.probe.do(context.Background(), http.MethodGet, path+"?resourceVersion=0", nil)
	if err != nil {
		return err
	}
	return json.Unmarshal(answer, into)
}

func (s *simulated) create(ctx context.Context) error {
	if _, err := s.probe.do(ctx, http.MethodPost, "/api/v1/namespaces", []byte(`{"metadata": {"name": "bench"}}`)); err != nil {
		return err
	}
	for i, left := 0, s.pods; left > 0; i, left = i+1, left-podsOfDeployment {
		body := fmt.Sprintf(`{"metadata": {"name": "web-%d"}, "spec": {"replicas": %d, "selector": {"matchLabels": {"app": "web-%[1]d"}},
			"template": {"metadata": {"labels": {"app": "web-%[1]d"}}, "spec": {"containers": [{"name": "web", "image": "example.invalid/web",
			"resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}}]}}}}`, i, min(left, podsOfDeployment))
		if _, err := s.probe.do(ctx, http.MethodPost, "/apis/apps/v1/namespaces/bench/deployments", []byte(body)); err != nil {
			return err
		}
	}
	return nil
}

// idle measures the memory and the CPU time of the cluster without clients.
func (s *simulated) idle(ctx context.Context, row string) ([]string, error) {
	s.probe.close()
	if err := pause(ctx, s.settle); err != nil {
		return nil, err
	}
	was, err := s.cluster.consumption()
	if err != nil {
		return nil, err
	}
	if err := pause(ctx, s.window); err != nil {
		return nil, err
	}
	is, err := s.cluster.consumption()
	if err != nil {
		return nil, err
	}
	memory, cpu := sum(is.anonymous)/1e6, 100*(is.cpu-was.cpu).Seconds()/is.at.Sub(was.at).Seconds()
	s.add(row, memory, "MB")
	s.add(row, cpu, "% of a core")
	return []string{fmt.Sprintf("%.0f", memory), fmt.Sprintf("%.2f", cpu)}, nil
}
