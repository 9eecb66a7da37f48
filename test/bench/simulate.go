package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/test/bench/machine"
)

// simulate is the command bench simulate: the cost of simulated nodes and the Pods on them.
func simulate(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	cmp := newComparison("simulate", 1, []string{"all"}, stdout, stderr)
	cmp.against = againstNone
	sizes := cmp.flags.String("nodes", "0,100,1000", "comma-separated numbers of nodes, one cluster after the other")
	perNode := cmp.flags.Int("pods", 10, "Pods for each node")
	replicas := cmp.flags.Int("replicas", 100, "Pods of each Deployment")
	scheduler := cmp.flags.String("scheduler-config", "", "`FILE` for the scheduler, as docs/testing.md has one for thousands of Pods")
	settle := cmp.flags.Duration("settle", 20*time.Second, "how long a cluster runs before its memory and idle CPU are measured")
	window := cmp.flags.Duration("window", 30*time.Second, "how long it is measured")
	cmp.flags.BoolVar(&cmp.kwok, "kwok", false, "measure the same karve with nodes of kwok, too, with kwok's fast stages")
	if err := cmp.parse(args); err != nil {
		return err
	}
	if *settle < 0 || *window <= 0 || *perNode < 1 || *perNode > 100 || *replicas < 1 || cmp.against == againstEtcd {
		return fmt.Errorf("simulate: -settle is %v, -window %v, -pods %d, -replicas %d and -against %s; want times, 1 to 100, at least 1, and a karve", *settle, *window, *perNode, *replicas, cmp.against)
	}
	var clusters []*simulated
	for text := range strings.SplitSeq(*sizes, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 16384 {
			return fmt.Errorf("-nodes: %q is not a number of nodes from 0 to 16384", text)
		}
		clusters = append(clusters, &simulated{nodes: n, pods: n * *perNode, replicas: *replicas, scheduler: *scheduler, settle: *settle, window: *window})
	}
	cmp.setting = fmt.Sprintf("a datastore in memory, as karve run has; Deployments of %d Pods; idle: for %v, %v after the nodes, or all Pods, were ready", *replicas, *window, *settle)
	cmp.notes = "ready: from the start of the process. available: from the first Deployment. peak: of the resident memory by then. gone: until the namespace is deleted.\n"
	return cmp.run(ctx, func(ctx context.Context, p *peer, dir string, s *sample) error {
		for _, one := range clusters {
			if err := one.measure(ctx, p, filepath.Join(dir, strconv.Itoa(one.nodes)), s); err != nil {
				return fmt.Errorf("%d nodes: %w", one.nodes, err)
			}
		}
		return nil
	})
}

// mostSimulated is how long Pods may take to become available, and to be gone.
const mostSimulated = 10 * time.Minute

// simulated is a cluster with simulated nodes.
type simulated struct {
	nodes, pods    int
	replicas       int    // of each Deployment
	scheduler      string // its configuration file, or ""
	settle, window time.Duration

	cluster *cluster
	probe   *prober
	http    *http.Client
	client  kubernetes.Interface // on http
}

// row is the name of a row for these nodes.
func (s *simulated) row(name string) string { return fmt.Sprintf("%d nodes, %s", s.nodes, name) }

func (s *simulated) measure(ctx context.Context, p *peer, dir string, to *sample) (err error) {
	began := time.Now()
	args := []string{"--datastore-endpoint", "memory://"}
	if p.kwok == nil {
		args = append(args, "--simulate-nodes", strconv.Itoa(s.nodes))
	}
	if s.scheduler != "" {
		args = append(args, "--kube-scheduler-arg", "config="+s.scheduler)
	}
	if s.cluster, s.probe, err = p.startReady(ctx, dir, args...); err != nil {
		return err
	}
	defer s.cluster.kill()
	defer s.probe.close()
	if s.http, err = rest.HTTPClientFor(s.cluster.config()); err != nil {
		return err
	}
	if s.client, err = kubernetes.NewForConfigAndClient(s.cluster.config(), s.http); err != nil {
		return err
	}
	if p.kwok != nil {
		if err := p.kwok.start(ctx, s.cluster, s.probe, dir, s.nodes); err != nil {
			return err
		}
	}
	if err := s.wait(ctx, s.nodesReady); err != nil {
		return err
	}
	to.add(s.row("nodes ready"), perOp, time.Since(began).Seconds())
	if err := s.idle(ctx, to, "idle without Pods"); err != nil || s.pods == 0 {
		return err
	}
	before, err := s.cluster.cpu()
	if err != nil {
		return err
	}
	began = time.Now()
	if err := errors.Join(s.create(ctx), s.wait(ctx, s.available)); err != nil {
		return err
	}
	took := time.Since(began)
	after, err := s.cluster.cpu()
	if err != nil {
		return err
	}
	to.add(s.row("all Pods available"), perOp, took.Seconds())
	to.add(s.row("all Pods available"), serverCPU, (after-before).Seconds()/float64(s.pods))
	if err := s.cluster.memory(to, s.row("peak memory"), machine.PeakMemory); err != nil {
		return err
	}
	if err := s.idle(ctx, to, "idle with Pods"); err != nil {
		return err
	}
	began = time.Now()
	if _, err := s.probe.do(ctx, http.MethodDelete, "/api/v1/namespaces/bench", nil); err != nil {
		return err
	}
	err = s.wait(ctx, func() (bool, error) {
		_, err := s.probe.do(ctx, http.MethodGet, "/api/v1/namespaces/bench", nil)
		return err != nil && strings.Contains(err.Error(), "404"), nil
	})
	to.add(s.row("namespace gone"), perOp, time.Since(began).Seconds())
	return err
}

// wait calls done twice a second until it reports true. More often would cost the server
// CPU time.
func (s *simulated) wait(ctx context.Context, done func() (bool, error)) error {
	return wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, mostSimulated, true, func(context.Context) (bool, error) {
		if err := s.cluster.failed(); err != nil {
			return false, err
		}
		return done()
	})
}

// nodesReady reports whether all nodes exist and the scheduler can use them.
func (s *simulated) nodesReady() (bool, error) {
	list, err := s.client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
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
	list, err := s.client.AppsV1().Deployments("bench").List(context.Background(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return false, err
	}
	total := 0
	for _, d := range list.Items {
		total += int(d.Status.AvailableReplicas)
	}
	return total == s.pods, nil
}

func (s *simulated) create(ctx context.Context) error {
	if _, err := s.probe.do(ctx, http.MethodPost, "/api/v1/namespaces", []byte(`{"metadata": {"name": "bench"}}`)); err != nil {
		return err
	}
	for i, left := 0, s.pods; left > 0; i, left = i+1, left-s.replicas {
		body := fmt.Sprintf(`{"metadata": {"name": "web-%d"}, "spec": {"replicas": %d, "selector": {"matchLabels": {"app": "web-%[1]d"}},
			"template": {"metadata": {"labels": {"app": "web-%[1]d"}}, "spec": {"containers": [{"name": "web", "image": "example.invalid/web",
			"resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}}]}}}}`, i, min(left, s.replicas))
		if _, err := s.probe.do(ctx, http.MethodPost, "/apis/apps/v1/namespaces/bench/deployments", []byte(body)); err != nil {
			return err
		}
	}
	return nil
}

// idle measures the memory and the CPU time of the cluster without clients.
func (s *simulated) idle(ctx context.Context, to *sample, row string) error {
	s.probe.close()
	s.http.CloseIdleConnections()
	if err := pause(ctx, s.settle); err != nil {
		return err
	}
	was, is, err := s.cluster.during(ctx, s.window)
	if err != nil {
		return err
	}
	to.add(s.row(row), bytesOf, is.anonymous...)
	to.add(s.row(row), cores, (is.cpu-was.cpu).Seconds()/is.at.Sub(was.at).Seconds())
	return nil
}
