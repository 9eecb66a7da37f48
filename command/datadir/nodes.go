package datadir

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/command/nodes"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/servers"
)

// readNodes asks the server in dir about its nodes.
func readNodes(ctx context.Context, dir string) (*nodes.Report, error) {
	config, err := servers.Kubeconfig(dir)
	if err != nil {
		return nil, err
	}
	config.Timeout = askTimeout
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	defer client.CloseIdleConnections()
	return nodes.Server{Client: client, URL: config.Host}.Read(ctx)
}

// readNodes adds the nodes to the status of a server that answers.
func (s *ServerStatus) readNodes(ctx context.Context) {
	if s.URL == "" {
		return
	}
	report, err := readNodes(ctx, s.DataDir)
	if err != nil {
		s.NodesUnknown = err.Error()
		return
	}
	s.Report = report
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
		line("node", "%s: %s, %s", output.Printable(n.Name), state, orDash(output.Printable(n.Kubelet)))
	}
	for _, l := range s.Lacks {
		line("lacks", "%s (%s)", output.Printable(l.What), output.Printable(l.Do))
	}
}
