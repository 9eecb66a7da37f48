package servertest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"

	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/servertest/process"
)

// childVariable has the configuration of a control plane, in JSON. A program that imports
// this package and finds the variable is that control plane, and no test.
const childVariable = "KARVE_SERVERTEST_CHILD"

// The program becomes the child before anything but its imports runs, and before its
// TestMain.
func init() {
	if configuration := os.Getenv(childVariable); configuration != "" {
		os.Unsetenv(childVariable)
		os.Exit(beChild(configuration))
	}
}

// readyLine is what a child prints when it is ready.
var readyLine = regexp.MustCompile("^ready\n")

// beChild runs a control plane until standard input ends, which happens at the latest when
// the parent ends.
func beChild(configuration string) int {
	var config server.Config
	if err := json.Unmarshal([]byte(configuration), &config); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", childVariable, err)
		return 2
	}
	config.Ready = func(server.Info) { io.WriteString(os.Stdout, "ready\n") }
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := server.Run(ctx, config); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// child is a control plane in a process of its own.
type child struct{ *process.Child }

func (c child) stop() error { return c.Stop() }
func (c child) log() string { return c.Log() }

// startChild starts this program again, as the child.
func startChild(config server.Config) (child, error) {
	configuration, err := json.Marshal(config)
	if err != nil {
		return child{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return child{}, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childVariable+"="+string(configuration))
	started, err := process.StartChild(cmd, readyLine)
	return child{started}, err
}
