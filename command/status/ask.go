package status

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/url"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/internal/ownership"
)

// askTimeout is how long a server may take for all that a command asks.
const askTimeout = 10 * time.Second

// readKubeconfig returns how to ask a running server, or nil while it starts. The server may be another user's, so
// nothing is trusted that it would not write.
func (s *ServerState) readKubeconfig(dir string) (*rest.Config, error) {
	config, written, err := servers.WholeKubeconfig(dir)
	if errors.Is(err, fs.ErrNotExist) {
		s.State = stateStarting
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	s.URL = config.Host
	_, s.AdvertisedURL = certs.KubeconfigServers(written)
	return config, nil
}

// ask asks a running server how it is, until ctx ends. It reads no file, and does not trust the answers.
func (s *ServerState) ask(ctx context.Context, config *rest.Config) error {
	ask, done, err := servers.NewGetter(s.DataDir, config)
	if err != nil {
		return err
	}
	defer done()
	get := func(path string) ([]byte, error) { return ask(ctx, path) }
	s.State = stateReady
	if text, err := get("/readyz?verbose"); err != nil {
		s.State, s.Problem = stateNotReady, failedChecks(text, err, get)
		if ctx.Err() != nil {
			s.Problem = "it does not answer"
		}
		if text == nil { // no answer: the other requests would wait for nothing
			return nil
		}
	}
	if text, err := get("/version"); err == nil {
		var v struct {
			GitVersion string `json:"gitVersion"`
		}
		if json.Unmarshal(text, &v) == nil {
			s.Version = v.GitVersion
		}
	}
	if text, err := get("/metrics"); err == nil {
		s.readMetrics(text)
	}
	for i := range s.Leases {
		s.Leases[i].readHolder(get)
	}
	return nil
}

// failedChecks are the checks of /readyz?verbose that failed, or the error if text is no such
// report. That report is public, so it has no reasons: each check tells its own to those who may ask.
func failedChecks(text []byte, err error, get func(path string) ([]byte, error)) string {
	var failed []string
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "[-]"); ok {
			name, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			reason, _ := get("/readyz/" + name)
			if reason := strings.TrimPrefix(strings.TrimSpace(string(reason)), "internal server error: "); reason != "" && len(reason) < reasonLimit {
				name += " (" + strings.ReplaceAll(reason, "\n", "; ") + ")"
			}
			failed = append(failed, name)
		}
	}
	if len(failed) == 0 {
		return err.Error()
	}
	return "failed checks: " + strings.Join(failed, ", ")
}

// reasonLimit is the length of a reason that people still read.
const reasonLimit = 2 << 10

// readMetrics reads what only the process itself knows.
func (s *ServerState) readMetrics(text []byte) {
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, number, _ := strings.Cut(lines.Text(), " ")
		value, err := strconv.ParseFloat(number, 64)
		if err != nil {
			continue
		}
		if lease, ok := strings.CutPrefix(name, `leader_election_master_status{name="`); ok {
			s.Leases = append(s.Leases, leaseStatus{Name: strings.TrimSuffix(lease, `"}`), Leads: value == 1})
			continue
		}
		switch name {
		case "process_start_time_seconds":
			if s.PID != 0 { // in another PID namespace, a server may have read of process 1 of the machine
				began := time.Unix(int64(value), 0).UTC()
				s.Since = &began
			}
		case "go_gc_gomemlimit_bytes":
			if value < 1<<62 { // that is no limit
				s.Memory.Limit = int64(value)
			}
		}
	}
}

// readHolder reads who leads. The namespace is upstream's default.
func (l *leaseStatus) readHolder(get func(path string) ([]byte, error)) {
	text, err := get("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/" + url.PathEscape(l.Name))
	var lease struct {
		Spec struct{ HolderIdentity string }
	}
	if err == nil && json.Unmarshal(text, &lease) == nil {
		l.Holder = lease.Spec.HolderIdentity
	}
}

// String says who leads.
func (l leaseStatus) String() string {
	switch name := output.Printable(l.Name); {
	case l.Leads:
		return "this server, of " + name
	case l.Holder != "":
		return output.Printable(l.Holder) + ", of " + name
	default:
		return "unknown, of " + name
	}
}

// readAsOwner is readFiles as the owner of the directory: no link or file there leads root to what the owner may not read.
func readAsOwner(dir string) (s *ServerState, config *rest.Config, err error) {
	err = ownership.Act(dir, func() (err error) {
		s, config, err = readFiles(dir)
		return err
	})
	return s, config, err
}
