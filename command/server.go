package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/internal/shell"
	"github.com/karve-k8s/karve/kine/location"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/marker"
)

// serverCommand is `karve server`.
func serverCommand() *cli.Command {
	return &cli.Command{
		Name:  "server",
		Usage: "run a control plane until it is stopped",
		Description: `Give an option as --name VALUE, in a variable KARVE_NAME, or as name: value in the
file of --config. The first of these that is set counts. A variable that is nearly
the name of an option is an error. A variable has one value: give several, such as of
--kube-apiserver-arg, on the command line or in the file.`,
		Flags: options.Server(),
		Action: func(c *cli.Context) error {
			if slices.Equal(c.StringSlice("upstream"), []string{"list"}) {
				return deviations.Print(c.App.Writer)
			}
			config, err := options.Read(c)
			if err != nil { // together with what the server would refuse
				return errors.Join(err, config.Validate(c.Context))
			}
			config.Progress = logProgress(config.Log)
			config.Ready = func(info server.Info) { greet(c.App.Writer, info) }
			ctx := c.Context
			if c.Bool("stop-with-stdin") {
				var end context.CancelFunc
				ctx, end = context.WithCancel(ctx)
				defer end()
				go func() {
					_, _ = io.Copy(io.Discard, os.Stdin)
					end()
				}()
			}
			err = server.Run(ctx, config)
			if stop := (stopSignal{}); err == nil && errors.As(context.Cause(c.Context), &stop) && stop.Signal == os.Interrupt { // somebody is there
				leave(c.App.Writer, config)
			}
			return ownership.Explain(err, config.DataDir)
		},
	}
}

// greet prints what a user needs of a server that is ready: where it is, and what to do next on
// lines of their own.
func greet(w io.Writer, info server.Info) {
	plain := ""
	if info.InsecureURL != "" {
		plain = " and " + info.InsecureURL
	}
	var slowest []string
	for _, part := range info.Slowest {
		slowest = append(slowest, fmt.Sprintf("%s %v", part.Part, part.Took.Round(time.Millisecond)))
	}
	client := "kubectl"
	if _, err := exec.LookPath(client); err != nil {
		client = "karve kubectl"
	}
	fmt.Fprintf(w, "karve is ready after %v (%s) at %s%s\nPage: %s\nNext:\n  %s; %s get namespaces\n",
		info.Took.Round(time.Millisecond), strings.Join(slowest, ", "), info.URL, plain, output.Page(info.PageURL), "export KUBECONFIG="+shell.Quoted(info.Kubeconfig), client)
}

// leave prints what stays of a server that has stopped, and how to delete it if Karve alone has it.
func leave(w io.Writer, config server.Config) {
	dir := options.Absolute(config.DataDir)
	at, err := location.Parse(config.DatastoreEndpoint, config.Durability)
	if err != nil { // it has been started with it
		return
	}
	store, _ := at.DirOnDisk(dir)
	what := "the cluster stays in " + dir
	switch {
	case at.InMemory():
		what = "its objects were in memory, and its certificates stay in " + dir
	case !at.BuiltIn():
		what = fmt.Sprintf("the cluster stays in %s, and its certificates in %s", at, dir)
	case store != dir:
		what = fmt.Sprintf("the cluster stays in %s, and its certificates in %s", store, dir)
	}
	fmt.Fprintln(w, "karve has stopped; "+output.Printable(what))
	// Other files than Karve's may be in a directory without the mark, and other servers use a datastore elsewhere.
	if _, err := os.Lstat(filepath.Join(dir, marker.File)); err == nil && (store == dir || at.InMemory()) {
		fmt.Fprintln(w, "To delete it: rm -r "+shell.Quoted(dir))
	}
}

// progressEvery is the least time between two log lines about a start that takes long.
const progressEvery = 30 * time.Second

// logProgress logs what a start is doing that takes longer than a few seconds.
func logProgress(log *logrus.Logger) func(server.Progress) {
	var last time.Time
	return func(at server.Progress) {
		if time.Since(last) < progressEvery {
			return
		}
		last = time.Now()
		text := fmt.Sprintf("the %s has been starting for %v", at.Part, at.For.Round(time.Second))
		if at.Doing != "" {
			text += " (" + at.Doing + ")"
		}
		log.Info(text)
	}
}
