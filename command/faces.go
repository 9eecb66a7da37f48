package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/karve-k8s/karve/envtest/etcd"
	"github.com/karve-k8s/karve/internal/memory"
	"github.com/karve-k8s/karve/internal/version"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/flags"
)

// The names under which karve is another program: those of which envtest starts one
// for the datastore and one for the API. kubectl is a third (see kubectl.go).
const (
	etcdFace      = "etcd"
	apiserverFace = "kube-apiserver"
)

// controllersVariable makes kube-apiserver run controllers and scheduler as well:
// it has no flag for that.
const controllersVariable = "KARVE_CONTROLLERS"

// face is what this program is under the name it was started by; nil: karve.
func face(program string) (name string, run func(ctx context.Context, args []string, stdout, stderr io.Writer) error) {
	switch name := strings.TrimSuffix(filepath.Base(program), ".exe"); name {
	case etcdFace:
		return name, runEtcd
	case apiserverFace:
		return name, runKubeAPIServer
	}
	return "", nil
}

// runFace ends with the exit code of the program that it is.
func runFace(name string, run func(context.Context, []string, io.Writer, io.Writer) error) {
	ctx, stop := signalContext()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		printProblems(os.Stderr, name+" (karve)", err)
		os.Exit(1)
	}
}

func runEtcd(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return etcd.Command{Args: args, Stdout: stdout, Stderr: stderr, Version: version.Karve, Nearest: flags.Nearest}.Run(ctx)
}

func runKubeAPIServer(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	controllers := false
	if value := os.Getenv(controllersVariable); value != "" {
		var err error
		if controllers, err = strconv.ParseBool(value); err != nil {
			return fmt.Errorf("%s=%q: want 1 or 0", controllersVariable, value)
		}
	}
	limit, err := memory.Limit(memory.Auto)
	if err != nil {
		return err
	}
	return server.KubeAPIServer{Args: args, Stdout: stdout, Stderr: stderr, Controllers: controllers, MemoryLimit: limit}.Run(ctx)
}
