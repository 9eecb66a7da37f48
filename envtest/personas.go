// Package envtest is what controller-runtime's envtest needs of Karve: the programs etcd
// and kube-apiserver, which the binary is when it is started under their names, and the
// directory of assets in which envtest finds them.
package envtest

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/karve-k8s/karve/envtest/etcd"
	"github.com/karve-k8s/karve/envtest/kubeapiserver"
	"github.com/karve-k8s/karve/internal/memory"
	"github.com/karve-k8s/karve/internal/version"
	"github.com/karve-k8s/karve/server/flags"
)

// The names under which karve is another program: envtest starts one for the datastore, and one for
// the API. kubectl is a third (see package command/kubectl).
const (
	etcdName      = "etcd"
	apiserverName = "kube-apiserver"
)

// controllersVariable makes kube-apiserver run the controllers and the scheduler too. It is
// a variable, because kube-apiserver has no flag for that.
const controllersVariable = "KARVE_CONTROLLERS"

// Program is what a persona runs until ctx ends: its arguments are those after its name.
type Program func(ctx context.Context, args []string, stdout, stderr io.Writer) error

// Persona returns the program that this binary is when it is started under the given name.
// run is nil if the name is not one of a persona.
func Persona(program string) (name string, run Program) {
	switch name := strings.TrimSuffix(filepath.Base(program), ".exe"); name {
	case etcdName:
		return name, runEtcd
	case apiserverName:
		return name, runKubeAPIServer
	}
	return "", nil
}

func runEtcd(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return etcd.Command{Args: args, Stdout: stdout, Stderr: stderr, Version: version.Full(), Nearest: flags.Nearest}.Run(ctx)
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
	return kubeapiserver.Program{Args: args, Stdout: stdout, Stderr: stderr, Controllers: controllers, MemoryLimit: limit}.Run(ctx)
}
