package status

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/status/servers"
)

// statusOfAll is `karve status --all`.
func statusOfAll(c *cli.Context) error {
	running, err := servers.Running(os.Getenv("KARVE_DATA_DIR"), options.DefaultDataDir(), "/var/lib/karve")
	if err != nil {
		return err
	}
	states := []*ServerState{} // [] in JSON, if there is none
	code := 0
	for _, found := range running {
		s, err := readState(c.Context, found.DataDir)
		switch {
		case c.Context.Err() != nil:
			return context.Cause(c.Context)
		case err != nil: // any user can start a server
			s = &ServerState{State: stateUnknown, Problem: err.Error(), DataDir: found.DataDir, PID: found.PID}
		case s.State == stateStopped: // since it was found
			continue
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
		fmt.Fprintln(w, "DATA DIRECTORY\tSTATE\tPROCESS\tADDRESS\tVERSION")
		for _, s := range states {
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", output.Printable(s.DataDir), s.State, s.PID, cmp.Or(output.Printable(s.URL), "-"), cmp.Or(output.Printable(s.Version), "-"))
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
