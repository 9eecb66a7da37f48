// Package nodes tells how the nodes of a running cluster are, and what the cluster lacks for them, for
// karve status.
//
// The server may be another user's, so nothing in its answers is trusted: they are limited in size and
// decoded into plain types.
package nodes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	nodeutil "k8s.io/component-helpers/node/util"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/karve-k8s/karve/simulate"
)

const (
	nodeTimeout = 5 * time.Second  // for the usage of one node
	allTimeout  = 30 * time.Second // for those of all nodes
	atOnce      = 32               // nodes that are asked at a time
	answerLimit = 16 << 20         // bytes of an answer that are read
	pageSize    = 200              // nodes in one answer
	causeLimit  = 300              // characters of a cause
)

// Server is a running API server.
type Server struct {
	Client *http.Client // with an administrator's identity
	URL    string
	// NodeTimeout limits the answer of a node; 0 means 5 seconds.
	NodeTimeout time.Duration
}

func (s Server) nodeTimeout() time.Duration { return cmp.Or(s.NodeTimeout, nodeTimeout) }

// Report is what the nodes are, and what they lack.
type Report struct {
	Nodes     []Node `json:"nodes,omitempty"`          // all but the simulated ones
	Simulated int    `json:"simulatedNodes,omitempty"` // how many there are
	Lacks     []Lack `json:"lacks,omitempty"`
}

// Node is one node.
type Node struct {
	Name    string `json:"name"`
	Ready   bool   `json:"ready"`
	Problem string `json:"problem,omitempty"` // why it is not ready
	Kubelet string `json:"kubelet"`           // its version
	Usage   *Usage `json:"usage,omitempty"`
	Unknown string `json:"usageUnknown,omitempty"` // why ReadUsage found no Usage
	// What Pods can use.
	MilliCPU int64 `json:"allocatableMillicores"`
	Memory   int64 `json:"allocatableMemoryBytes"`

	nowhere bool // it has no addresses
}

// Usage is what a node uses of its processors and its memory.
type Usage struct {
	MilliCPU int64  `json:"millicores"`
	Memory   int64  `json:"memoryBytes"` // the working set, as kubectl top shows it
	Source   string `json:"source"`      // metrics.k8s.io or kubelet
}

// Lack is something that the nodes of a cluster need and do not have.
type Lack struct {
	What string `json:"what"`
	Do   string `json:"do"`
}

// Read asks the server about its nodes. It asks no node: [Server.ReadUsage] does. Only the list of nodes
// can fail. Anything else that cannot be read is left out of the report.
func (s Server) Read(ctx context.Context) (*Report, error) {
	all, err := s.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	report := &Report{}
	var machines []corev1.Node
	for _, n := range all {
		if simulate.IsNode(&n) {
			report.Simulated++
			continue
		}
		machines = append(machines, n)
		report.Nodes = append(report.Nodes, describe(&n))
	}
	if len(machines) == 0 {
		return report, nil
	}
	report.Lacks = s.facts(ctx, machines).lacks()
	return report, nil
}

// list returns all nodes, page by page.
func (s Server) list(ctx context.Context) (all []corev1.Node, err error) {
	for next := ""; ; {
		var page corev1.NodeList
		if err := s.get(ctx, fmt.Sprintf("/api/v1/nodes?limit=%d&continue=%s", pageSize, url.QueryEscape(next)), &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if next = page.Continue; next == "" {
			return all, nil
		}
	}
}

// describe is what a Node object says.
func describe(n *corev1.Node) Node {
	d := Node{Name: n.Name, Kubelet: n.Status.NodeInfo.KubeletVersion, Problem: "the kubelet has not reported yet",
		MilliCPU: n.Status.Allocatable.Cpu().MilliValue(), Memory: n.Status.Allocatable.Memory().Value()}
	d.nowhere = len(n.Status.Addresses) == 0
	if _, c := nodeutil.GetNodeCondition(&n.Status, corev1.NodeReady); c != nil {
		if d.Ready = c.Status == corev1.ConditionTrue; d.Ready {
			d.Problem = ""
		} else {
			d.Problem = short(c.Message)
		}
	}
	return d
}

// ReadUsage adds the usage of the nodes to a report of [Server.Read], from metrics-server, and from the
// kubelets of nodes that it does not know. A node whose usage cannot be read has the cause.
func (s Server) ReadUsage(ctx context.Context, report *Report) {
	nodes := report.Nodes
	if len(nodes) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, allTimeout)
	defer cancel()
	known := s.metrics(ctx)
	var wait sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range nodes {
		n := &nodes[i]
		if n.Usage = known[n.Name]; n.Usage != nil {
			continue
		}
		if n.nowhere { // the API server would log an error about it
			n.Unknown = "the Node has no addresses"
			continue
		}
		wait.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			usage, err := s.askKubelet(ctx, n.Name)
			if err != nil {
				n.Unknown = err.Error()
				return
			}
			n.Usage = usage
		})
	}
	wait.Wait()
}

// metrics is what metrics-server knows; nothing if there is none, or if it does not answer.
func (s Server) metrics(ctx context.Context) map[string]*Usage {
	ctx, cancel := context.WithTimeout(ctx, s.nodeTimeout())
	defer cancel()
	var list metricsv1beta1.NodeMetricsList
	if s.get(ctx, "/apis/metrics.k8s.io/v1beta1/nodes", &list) != nil {
		return nil
	}
	known := map[string]*Usage{}
	for _, m := range list.Items {
		known[m.Name] = &Usage{MilliCPU: m.Usage.Cpu().MilliValue(), Memory: m.Usage.Memory().Value(), Source: "metrics.k8s.io"}
	}
	return known
}

// summary is the part of a kubelet's /stats/summary that counts here.
type summary struct {
	Node struct {
		CPU struct {
			UsageNanoCores *uint64 `json:"usageNanoCores"`
		} `json:"cpu"`
		Memory struct {
			WorkingSetBytes *uint64 `json:"workingSetBytes"`
		} `json:"memory"`
	} `json:"node"`
}

// askKubelet asks a kubelet, through the API server. The kubelet's /metrics/resource has no rate, so that
// two looks would be needed.
func (s Server) askKubelet(ctx context.Context, node string) (*Usage, error) {
	limited, cancel := context.WithTimeout(ctx, s.nodeTimeout())
	defer cancel()
	var answer summary
	err := s.get(limited, "/api/v1/nodes/"+url.PathEscape(node)+"/proxy/stats/summary?only_cpu_and_memory=true", &answer)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
		return nil, errors.New("no answer before the time for all requests was over")
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("no answer within %v", s.nodeTimeout())
	case err != nil:
		return nil, err
	case answer.Node.CPU.UsageNanoCores == nil || answer.Node.Memory.WorkingSetBytes == nil:
		return nil, errors.New("the kubelet has not measured yet")
	}
	return &Usage{MilliCPU: int64(*answer.Node.CPU.UsageNanoCores / 1_000_000), Memory: int64(*answer.Node.Memory.WorkingSetBytes), Source: "kubelet"}, nil
}

// get decodes the answer of the API server for a path.
func (s Server) get(ctx context.Context, path string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/json")
	response, err := s.Client.Do(request)
	if err != nil {
		if inner := (*url.Error)(nil); errors.As(err, &inner) {
			err = inner.Err // without the URL
		}
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, answerLimit))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(cause(response.Status, text))
	}
	if err := json.Unmarshal(text, into); err != nil {
		return errors.New("the answer is not understood")
	}
	return nil
}

// cause is what an answer says about a failure.
func cause(status string, text []byte) string {
	var s metav1.Status
	said := strings.TrimSpace(string(text))
	if json.Unmarshal(text, &s) == nil && s.Message != "" {
		said = s.Message
	}
	switch {
	case said == "" || strings.HasSuffix(status, said):
		return status
	case s.Message != "":
		return short(said)
	}
	return short(status + ": " + said)
}

// short is the beginning of a text.
func short(text string) string {
	if runes := []rune(text); len(runes) > causeLimit {
		return string(runes[:causeLimit]) + "…"
	}
	return text
}
