package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	nodeutil "k8s.io/component-helpers/node/util"

	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/simulate"
)

const (
	pageSize   = 200 // nodes in one answer
	causeLimit = 300 // characters of a cause
)

// server answers for a path.
type server servers.Getter

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
}

// Lack is something that the nodes of a cluster need and do not have.
type Lack struct {
	What string `json:"what"`
	Do   string `json:"do"`
}

// readReport asks a server about its nodes. Only the list of nodes can fail. Anything else that cannot be read is left out of the report.
func readReport(ctx context.Context, get servers.Getter) (*Report, error) {
	s := server(get)
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
func (s server) list(ctx context.Context) (all []corev1.Node, err error) {
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
	d := Node{Name: n.Name, Kubelet: n.Status.NodeInfo.KubeletVersion, Problem: "the kubelet has not reported yet"}
	if _, c := nodeutil.GetNodeCondition(&n.Status, corev1.NodeReady); c != nil {
		if d.Ready = c.Status == corev1.ConditionTrue; d.Ready {
			d.Problem = ""
		} else {
			d.Problem = short(c.Message)
		}
	}
	return d
}

// get decodes the answer of the API server for a path.
func (s server) get(ctx context.Context, path string, into any) error {
	text, err := s(ctx, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return errors.New("the answer is not understood")
	}
	return nil
}

// short is the beginning of a text.
func short(text string) string {
	if runes := []rune(text); len(runes) > causeLimit {
		return string(runes[:causeLimit]) + "…"
	}
	return text
}
