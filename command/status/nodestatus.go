package status

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/status/servers"
)

// readNodes adds the nodes to the status of a server that answers.
func (s *ServerStatus) readNodes(ctx context.Context) {
	if s.URL == "" {
		return
	}
	config, err := servers.Kubeconfig(s.DataDir)
	if err == nil {
		var get servers.Getter
		var done func()
		if get, done, err = servers.NewGetter(s.DataDir, config); err == nil {
			defer done()
			s.Report, err = readReport(ctx, get)
		}
	}
	if err != nil {
		s.NodesUnknown = err.Error()
	}
}

// mostNodes is how many nodes the table shows.
const mostNodes = 50

// nodesTable writes a line for each node, and for each lack.
func (s *ServerStatus) nodesTable(w io.Writer) {
	line := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	if s.NodesUnknown != "" {
		line("nodes", "unknown: %s", output.Printable(s.NodesUnknown))
		return
	}
	if s.Report == nil {
		return
	}
	if s.Simulated > 0 {
		line("nodes", "%d simulated", s.Simulated)
	}
	for i, n := range s.Nodes {
		if i == mostNodes {
			line("nodes", "and %d more (karve status -o json shows all)", len(s.Nodes)-i)
			break
		}
		state := "ready"
		if !n.Ready {
			state = "not ready (" + output.Printable(n.Problem) + ")"
		}
		line("node", "%s: %s, %s", output.Printable(n.Name), state, cmp.Or(output.Printable(n.Kubelet), "-"))
	}
	for _, l := range s.Lacks {
		line("lacks", "%s (%s)", output.Printable(l.What), output.Printable(l.Do))
	}
}
