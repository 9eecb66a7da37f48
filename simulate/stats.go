package simulate

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// running calls do with each container that runs on a node, and with what it uses.
func (s *simulation) running(n *node, do func(p *corev1.Pod, container string, started time.Time, cores float64, memory uint64)) {
	all := s.allPods()
	for _, p := range all {
		if p.Spec.NodeName != n.name {
			continue
		}
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			if c.State.Running != nil {
				usage := Usage(p, c.Name, s.Defaults, func() []*corev1.Pod { return all })
				do(p, c.Name, c.State.Running.StartedAt.Time, usage.Cpu().AsApproximateFloat64(), uint64(usage.Memory().Value()))
			}
		}
	}
}

func (s *simulation) allPods() (all []*corev1.Pod) {
	for _, object := range s.PodInformer.GetStore().List() {
		all = append(all, object.(*corev1.Pod))
	}
	return all
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
	summary := stats.Summary{Node: stats.NodeStats{NodeName: n.name}, Pods: []stats.PodStats{}}
	type total struct {
		cores, seconds float64
		memory         uint64
	}
	var node total
	pods := map[string]*total{}
	index := map[string]int{}
	s.running(n, func(p *corev1.Pod, container string, started time.Time, cores float64, bytes uint64) {
		id := string(p.UID)
		if pods[id] == nil {
			pods[id], index[id] = &total{}, len(summary.Pods)
			summary.Pods = append(summary.Pods, stats.PodStats{PodRef: stats.PodReference{Name: p.Name, Namespace: p.Namespace, UID: id}, StartTime: *p.Status.StartTime})
		}
		seconds := cores * time.Since(started).Seconds()
		for _, t := range []*total{&node, pods[id]} {
			t.cores, t.seconds, t.memory = t.cores+cores, t.seconds+seconds, t.memory+bytes
		}
		of := &summary.Pods[index[id]]
		of.Containers = append(of.Containers, stats.ContainerStats{Name: container, StartTime: metav1.NewTime(started), CPU: cpu(cores, seconds), Memory: memory(bytes)})
	})
	for id, t := range pods {
		summary.Pods[index[id]].CPU, summary.Pods[index[id]].Memory = cpu(t.cores, t.seconds), memory(t.memory)
	}
	summary.Node.CPU, summary.Node.Memory = cpu(node.cores, node.seconds), memory(node.memory)
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(summary)
}

// resourceMetrics answers /metrics/resource, which metrics-server reads.
func (s *simulation) resourceMetrics(w http.ResponseWriter, n *node) {
	families := []struct{ name, kind string }{
		{"container_cpu_usage_seconds_total", "counter"}, {"container_memory_working_set_bytes", "gauge"}, {"container_start_time_seconds", "gauge"},
	}
	lines := map[string][]string{}
	var seconds float64
	var memory uint64
	s.running(n, func(p *corev1.Pod, container string, started time.Time, cores float64, bytes uint64) {
		used := cores * time.Since(started).Seconds()
		seconds, memory = seconds+used, memory+bytes
		for i, value := range []float64{used, float64(bytes), float64(started.Unix())} {
			name := families[i].name
			lines[name] = append(lines[name], fmt.Sprintf("%s{container=%q,namespace=%q,pod=%q} %g", name, container, p.Namespace, p.Name, value))
		}
	})
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	for _, f := range families {
		fmt.Fprintf(w, "# TYPE %s %s\n%s\n", f.name, f.kind, strings.Join(lines[f.name], "\n"))
	}
	fmt.Fprintf(w, "# TYPE node_cpu_usage_seconds_total counter\nnode_cpu_usage_seconds_total %g\n", seconds)
	fmt.Fprintf(w, "# TYPE node_memory_working_set_bytes gauge\nnode_memory_working_set_bytes %d\n", memory)
}
