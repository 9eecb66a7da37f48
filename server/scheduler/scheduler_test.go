package scheduler

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"
)

// runFile runs a scheduler with a configuration file that is wrong. It returns the steps that it began, too.
func runFile(t *testing.T, shared bool, content string) (file string, steps []string, err error) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "scheduler.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"+content), 0o600); err != nil {
		t.Fatal(err)
	}
	upstream, err := Parse([]string{"config=" + file}, shared)
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err = New(Options{
		Upstream: upstream, Identity: "me", Log: log,
		Connect: func() Connection { return Connection{Client: &rest.Config{Host: "https://127.0.0.1:1"}} },
		Step: func(name string) func() {
			steps = append(steps, name)
			return func() {}
		},
	}).Run(ctx, func() {})
	return file, steps, err
}

func TestFileHasBadTimes(t *testing.T) {
	file, _, err := runFile(t, true, "leaderElection: {leaseDuration: 15500ms}\n")
	if err == nil || !strings.Contains(err.Error(), "--kube-scheduler-arg config="+file+", leaderElection: ") || !strings.Contains(err.Error(), "whole seconds") {
		t.Errorf("got %v, want an error that names %s", err, file)
	}
}

// Where there is no election, a start makes upstream's configuration once, in its step.
func TestConfigurationIsMadeOnce(t *testing.T) {
	if _, steps, err := runFile(t, false, "parallelism: many\n"); err == nil || !slices.Equal(steps, []string{"configuration"}) {
		t.Errorf("got steps %q and error %v, want an error in the step configuration", steps, err)
	}
}
