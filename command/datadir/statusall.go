package datadir

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/servers"
)

// allUsage is the usage of `karve status --all`, which depends on how the system lets servers
// be found (see package servers).
var allUsage = func() string {
	if runtime.GOOS == "linux" {
		return "show all servers that run on this machine: this user's, or everybody's for root"
	}
	return "show the servers that run in the usual data directories and in KARVE_DATA_DIR. This system does not tell about others."
}()

// onlyAll refuses options beside --all that name one server. Variables may stay set.
func onlyAll(c *cli.Context) error {
	for _, name := range []string{"data-dir", "datastore-endpoint"} {
		if c.IsSet(name) && os.Getenv("KARVE_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))) == "" {
			return fmt.Errorf("--all shows the servers of all data directories: leave out --%s", name)
		}
	}
	return nil
}

// statusOfAll is `karve status --all`.
func statusOfAll(c *cli.Context) error {
	running, err := servers.Running(os.Getenv("KARVE_DATA_DIR"), options.DefaultDataDir(), "/var/lib/karve")
	if err != nil {
		return err
	}
	all := readAll(c.Context, running, time.Now())
	if c.Context.Err() != nil {
		return context.Cause(c.Context)
	}
	states := []*ServerState{} // [] in JSON, if there is none
	code := 0
	for _, s := range all {
		if s.State == stateStopped {
			continue // since it was found
		}
		if s.State != stateReady {
			code = exitNotReady
		}
		states = append(states, s)
	}
	if len(states) == 0 {
		code = exitStopped
		fmt.Fprintln(c.App.ErrWriter, "karve: no server runs that this user can see")
	}
	err = output.Show(c, states, func(w io.Writer) {
		if len(states) == 0 {
			return
		}
		fmt.Fprintln(w, "DATA DIRECTORY\tSTATE\tPROCESS\tSINCE\tADDRESS\tMEMORY\tVERSION")
		for _, s := range states {
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\n", output.Printable(s.DataDir), s.State, s.PID, s.since(),
				orDash(output.Printable(s.URL)), s.memory(), orDash(output.Printable(s.Version)))
		}
		for _, s := range states {
			if s.Problem != "" {
				fmt.Fprintf(w, "%s: %s\n", output.Printable(s.DataDir), output.Printable(s.Problem))
			}
		}
	})
	if err == nil && code != 0 {
		return cli.Exit("", code)
	}
	return err
}

// readAll reads the states of servers, in their order. It asks them at the same time: those that do not answer
// take as long as one of them.
func readAll(ctx context.Context, running []servers.Server, now time.Time) []*ServerState {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	states := make([]*ServerState, len(running))
	configs := make([]*rest.Config, len(running))
	for i, found := range running { // one by one, as each may need another identity of the process
		states[i], configs[i] = readFound(found, now)
	}
	var wait sync.WaitGroup
	for i, config := range configs {
		if config == nil {
			continue
		}
		wait.Go(func() {
			if err := states[i].ask(ctx, config); err != nil {
				states[i] = unknown(running[i], err)
			}
		})
	}
	wait.Wait()
	return states
}

func unknown(found servers.Server, err error) *ServerState {
	return &ServerState{State: stateUnknown, Problem: err.Error(), DataDir: found.DataDir, PID: found.PID}
}

// readFound reads the files of a server that nobody named. Any user can start one.
func readFound(found servers.Server, now time.Time) (*ServerState, *rest.Config) {
	s, config, err := readAsOwner(found.DataDir, now)
	if err != nil {
		return unknown(found, err), nil
	}
	return s, config
}

func (s *ServerState) since() string {
	if s.Since == nil {
		return "-"
	}
	return s.Since.Local().Format(time.DateTime)
}

func (s *ServerState) memory() string {
	if s.Memory == nil || s.Memory.Anonymous == 0 {
		return "-"
	}
	return mebi(s.Memory.Anonymous)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
