package simulate

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// counters add up the CPU time of a node's containers, from one reading to the next. So they never go back while the server runs.
type counters struct {
	mu    sync.Mutex
	of    map[string]*counter // by the container's ID
	ended float64             // seconds of containers that have ended
}

type counter struct {
	seconds, cores float64
	at             time.Time
}

// used is what a container uses at a moment.
type used struct {
	pod            *corev1.Pod
	container      string
	started        time.Time
	cores, seconds float64
	memory         uint64
}

// running returns what the containers of a node use, sorted by their Pods, and the node's seconds of CPU.
func (s *simulation) running(n *node, now time.Time) (all []used, seconds float64) {
	pods := s.allPods()
	usage := NewUsage(s.Defaults, func() []*corev1.Pod { return pods })
	n.cpu.mu.Lock()
	defer n.cpu.mu.Unlock()
	was, is := n.cpu.of, map[string]*counter{}
	for _, p := range pods {
		if p.Spec.NodeName != n.name {
			continue
		}
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			if c.State.Running == nil {
				continue
			}
			uses := usage.Of(p, c.Name)
			of := used{pod: p, container: c.Name, started: c.State.Running.StartedAt.Time, cores: uses.Cpu().AsApproximateFloat64(), memory: uint64(uses.Memory().Value())}
			count := was[c.ContainerID]
			if count == nil {
				count = &counter{cores: of.cores, at: of.started}
			}
			delete(was, c.ContainerID)
			is[c.ContainerID] = count
			count.seconds += count.cores * max(now.Sub(count.at).Seconds(), 0)
			count.cores, count.at = of.cores, now
			of.seconds = count.seconds
			all, seconds = append(all, of), seconds+of.seconds
		}
	}
	for _, ended := range was {
		n.cpu.ended += ended.seconds
	}
	n.cpu.of = is
	return all, seconds + n.cpu.ended
}

func (s *simulation) allPods() (all []*corev1.Pod) {
	for _, object := range s.PodInformer.GetStore().List() {
		all = append(all, object.(*corev1.Pod))
	}
	return all
}

// byPod returns the totals of each Pod.
func byPod(all []used) (pods []used) {
	for _, of := range all {
		if last := len(pods) - 1; last < 0 || pods[last].pod != of.pod {
			pods = append(pods, used{pod: of.pod})
		}
		p := &pods[len(pods)-1]
		p.cores, p.seconds, p.memory = p.cores+of.cores, p.seconds+of.seconds, p.memory+of.memory
	}
	return pods
}

// summary answers /stats/summary.
func (s *simulation) summary(w http.ResponseWriter, n *node) {
	now := metav1.Now()
	cpu := func(cores, seconds float64) *stats.CPUStats {
		nano, total := uint64(cores*1e9), uint64(seconds*1e9)
		return &stats.CPUStats{Time: now, UsageNanoCores: &nano, UsageCoreNanoSeconds: &total}
	}
	memory := func(bytes uint64) *stats.MemoryStats {
		return &stats.MemoryStats{Time: now, UsageBytes: &bytes, WorkingSetBytes: &bytes}
	}
	all, seconds := s.running(n, now.Time)
	summary, cores, bytes := stats.Summary{Node: stats.NodeStats{NodeName: n.name}, Pods: []stats.PodStats{}}, 0.0, uint64(0)
	if object, there, _ := s.NodeInformer.GetStore().GetByKey(n.name); there {
		summary.Node.StartTime = object.(*corev1.Node).CreationTimestamp
	}
	for _, p := range byPod(all) {
		of := stats.PodStats{PodRef: stats.PodReference{Name: p.pod.Name, Namespace: p.pod.Namespace, UID: string(p.pod.UID)}, CPU: cpu(p.cores, p.seconds), Memory: memory(p.memory)}
		if p.pod.Status.StartTime != nil {
			of.StartTime = *p.pod.Status.StartTime
		}
		for _, c := range all {
			if c.pod == p.pod {
				of.Containers = append(of.Containers, stats.ContainerStats{Name: c.container, StartTime: metav1.NewTime(c.started), CPU: cpu(c.cores, c.seconds), Memory: memory(c.memory)})
			}
		}
		summary.Pods = append(summary.Pods, of)
		cores, bytes = cores+p.cores, bytes+p.memory
	}
	summary.Node.CPU, summary.Node.Memory = cpu(cores, seconds), memory(bytes)
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(summary)
}

// resourceMetrics answers /metrics/resource, which metrics-server reads (pkg/kubelet/metrics/collectors/resource_metrics.go).
func (s *simulation) resourceMetrics(w http.ResponseWriter, n *node) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	family := func(name, kind string, lines ...string) {
		if len(lines) > 0 {
			fmt.Fprintf(w, "# TYPE %s %s\n%s\n", name, kind, strings.Join(lines, "\n"))
		}
	}
	all, seconds := s.running(n, time.Now())
	memory := uint64(0)
	lines := map[string][]string{}
	add := func(name, labels string, value float64) {
		lines[name] = append(lines[name], fmt.Sprintf("%s{%s} %g", name, labels, value))
	}
	for _, c := range all {
		labels := fmt.Sprintf("container=%q,namespace=%q,pod=%q", c.container, c.pod.Namespace, c.pod.Name)
		add("container_cpu_usage_seconds_total", labels, c.seconds)
		add("container_memory_working_set_bytes", labels, float64(c.memory))
		add("container_start_time_seconds", labels, float64(c.started.Unix()))
		memory += c.memory
	}
	for _, p := range byPod(all) {
		labels := fmt.Sprintf("namespace=%q,pod=%q", p.pod.Namespace, p.pod.Name)
		add("pod_cpu_usage_seconds_total", labels, p.seconds)
		add("pod_memory_working_set_bytes", labels, float64(p.memory))
	}
	for _, of := range []string{"container", "pod"} {
		family(of+"_cpu_usage_seconds_total", "counter", lines[of+"_cpu_usage_seconds_total"]...)
		family(of+"_memory_working_set_bytes", "gauge", lines[of+"_memory_working_set_bytes"]...)
	}
	family("container_start_time_seconds", "gauge", lines["container_start_time_seconds"]...)
	family("node_cpu_usage_seconds_total", "counter", fmt.Sprintf("node_cpu_usage_seconds_total %g", seconds))
	family("node_memory_working_set_bytes", "gauge", fmt.Sprintf("node_memory_working_set_bytes %d", memory))
	family("resource_scrape_error", "gauge", "resource_scrape_error 0")
}
