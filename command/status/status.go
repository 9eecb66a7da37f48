// Package status has the commands that ask a running server: how it and its nodes are, what the cluster lacks for them, and what became of
// the manifests. The server may be another user's, so nothing in its answers is trusted.
package status

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/internal/memory"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/internal/shell"
	"github.com/karve-k8s/karve/kine/location"
)

// The states of a server, and the exit codes of `karve status` for them. 1 is an error, as of
// every command. 3 and 4 are the LSB's for "not running" and "unknown".
const (
	stateReady    = "ready"
	stateStarting = "starting"  // the admin's kubeconfig is not written yet
	stateNotReady = "not ready" // it stops, or a check fails
	stateStopped  = "stopped"
	stateUnknown  = "unknown" // of a server among several that could not be asked

	exitStopped  = 3
	exitNotReady = 4
)

// ServerStatus is what `karve status -o json` prints. What is not known is left out.
type ServerStatus struct {
	ServerState
	Tunnels    []control.Tunnel   `json:"tunnels,omitempty"`   // through SSH to nodes
	Manifests  *control.Manifests `json:"manifests,omitempty"` // nil if there are none
	Notices    []string           `json:"notices,omitempty"`
	Page       string             `json:"page,omitempty"` // the URL of the page for people
	Datastore  *sqlitefile.Info   `json:"datastore,omitempty"`
	Elsewhere  string             `json:"datastoreElsewhere,omitempty"` // what the datastore is, if not the built-in one
	LastBackup *backup.Record     `json:"lastBackup"`                   // null: never
	// BackupFailure says why the last scheduled backup failed. A later one that succeeds removes it.
	BackupFailure *backup.Failure `json:"backupFailure,omitempty"`

	*Report             // nil if the server does not answer
	NodesUnknown string `json:"nodesUnknown,omitempty"` // why
}

// ServerState is what `karve status --all -o json` prints of each server: all but its datastore.
type ServerState struct {
	State         string        `json:"state"`
	Problem       string        `json:"problem,omitempty"`
	DataDir       string        `json:"dataDir"`
	PID           int           `json:"pid,omitempty"`
	Since         *time.Time    `json:"since,omitempty"`
	Version       string        `json:"version,omitempty"`
	URL           string        `json:"url,omitempty"`
	AdvertisedURL string        `json:"advertisedURL,omitempty"` // --advertise-url
	Memory        *memoryStatus `json:"memory,omitempty"`
	Leases        []leaseStatus `json:"leases,omitempty"` // of the leader election
}

type memoryStatus struct {
	Anonymous int64 `json:"rssAnonBytes,omitempty"`
	Limit     int64 `json:"limitBytes,omitempty"` // what --memory-limit came to
}

// leaseStatus is a lease of which this server is a candidate.
type leaseStatus struct {
	Name   string `json:"name"`
	Leads  bool   `json:"leads"`            // this server does
	Holder string `json:"holder,omitempty"` // the identity of the leader, if it is known
}

// Status is `karve status`.
func Status() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "show the state of the server in a data directory, or of all servers",
		Description: `Exit code: 0 if the server is ready, 3 if it is stopped, 4 if it runs but is not
ready, and 1 if its state cannot be determined. With --all: 0 if all servers are
ready, 3 if none runs, otherwise 4.`,
		Flags: []cli.Flag{
			options.Config(), options.DataDir(), options.DatastoreEndpoint(), output.Flag(),
			&cli.BoolFlag{Name: "all", Usage: "show all servers of this user that run on this machine, and for root everybody's. On systems other than Linux: those in the usual data directories."},
		},
		Before: func(c *cli.Context) error {
			if c.Bool("all") {
				return nil
			}
			return options.FindDataDir(c)
		},
		Action: func(c *cli.Context) error {
			if c.Bool("all") {
				return statusOfAll(c)
			}
			limited, cancel := context.WithTimeout(c.Context, askTimeout)
			defer cancel()
			s, err := readStatus(limited, options.Absolute(c.String("data-dir")), c.String("datastore-endpoint"))
			if c.Context.Err() != nil { // nobody knows what it is
				return context.Cause(c.Context)
			} else if err != nil {
				return err
			}
			if err := output.Show(c, s, func(w io.Writer) { s.table(w) }); err != nil {
				return err
			}
			switch s.State {
			case stateReady:
				return nil
			case stateStopped:
				return cli.Exit("", exitStopped)
			}
			return cli.Exit("", exitNotReady)
		},
	}
}

// readStatus reads the lock, asks the server until ctx ends, and reads the files of the data directory. If one of
// them fails, that is an error: an incomplete status would mislead. A server that does not answer in time is not ready.
func readStatus(ctx context.Context, dir, endpoint string) (*ServerStatus, error) {
	if !options.Exists(dir) {
		return nil, servers.None(dir)
	}
	state, err := readState(ctx, dir)
	if err != nil {
		return nil, err
	}
	s := &ServerStatus{ServerState: *state}
	if err := s.readDatastore(ctx, endpoint, dir); err != nil {
		return nil, err
	}
	if s.State != stateStopped {
		s.Tunnels = asked(ctx, dir, (*control.Client).Tunnels)
		s.Notices = asked(ctx, dir, (*control.Client).Notices)
		s.Page = asked(ctx, dir, (*control.Client).Page)
		if all := asked(ctx, dir, (*control.Client).Manifests); all != nil && (all.Problem != "" || len(all.Files)+len(all.Strays) > 0) {
			s.Manifests = all
		}
	}
	s.readNodes(ctx) // last: a node may be silent until the time is over
	return s, nil
}

// readState is readStatus without nodes, tunnels and the datastore.
func readState(ctx context.Context, dir string) (*ServerState, error) {
	s, config, err := readAsOwner(dir)
	if err != nil || config == nil {
		return s, err
	}
	limited, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return s, s.ask(limited, config)
}

// readFiles reads what a data directory says of its server. With config, the server can be asked for the rest;
// it is nil for one that is stopped or starting.
func readFiles(dir string) (s *ServerState, config *rest.Config, err error) {
	s = &ServerState{State: stateStopped, DataDir: dir}
	pid, held, err := servers.Holder(dir)
	if err != nil {
		return nil, nil, err
	}
	if held {
		s.PID, s.Memory = pid, &memoryStatus{Anonymous: memory.Anonymous(pid)}
		if info, err := os.Stat(filepath.Join(dir, "lock")); err == nil {
			began := info.ModTime().UTC().Truncate(time.Second)
			s.Since = &began // the server may know better
		}
		config, err = s.readKubeconfig(dir)
		if err != nil {
			return nil, nil, err
		}
	}
	return s, config, nil
}

func (s *ServerStatus) readDatastore(ctx context.Context, endpoint, dataDir string) error {
	dir, err := location.Dir(endpoint, dataDir)
	if err != nil {
		s.Elsewhere = err.Error()
		return nil
	}
	path := filepath.Join(dir, datastore.EngineFile)
	if !options.Exists(path) {
		if options.Exists(filepath.Join(dataDir, servers.KubeconfigName)) { // a server has been ready
			s.Elsewhere = "not here: the server uses another (with its --datastore-endpoint or --config, this command names it)"
		}
		return nil
	}
	err = ownership.Act(dir, func() (err error) {
		s.Datastore, err = servers.LookAt(ctx, dataDir, path)
		return err
	})
	if err != nil && ctx.Err() != nil {
		s.Elsewhere = path + " (the server has it open, and does not answer)"
		return nil
	}
	if errors.Is(err, control.ErrMissing) && s.State == stateStarting {
		s.Elsewhere, err = path+" (being opened)", nil
	}
	if err != nil {
		return err
	}
	if s.LastBackup, err = backup.Last(path); err != nil {
		return err
	}
	s.BackupFailure, err = backup.LastFailure(path)
	return err
}

// asked is the server's answer to one question, or the zero value if it does not answer, or is of a release that cannot.
func asked[T any](ctx context.Context, dir string, ask func(*control.Client, context.Context) (T, error)) (answer T) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	client := control.New(dir)
	defer client.Close()
	if got, err := ask(client, ctx); err == nil {
		answer = got
	}
	return answer
}

// Ready returns an error unless the server in a data directory is ready, as `karve status` finds it.
func Ready(ctx context.Context, dir string) error {
	s, err := readState(ctx, dir)
	if err != nil || s.State == stateReady {
		return err
	}
	switch {
	case s.Problem != "":
		return fmt.Errorf("karve status: %s: %s", s.State, output.Printable(s.Problem))
	case s.State == stateStopped:
		return fmt.Errorf("karve status: stopped: no server runs with --data-dir %s", shell.Quoted(dir))
	}
	return fmt.Errorf("karve status: %s", s.State)
}
