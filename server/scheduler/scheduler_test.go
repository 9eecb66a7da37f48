package scheduler

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"
)

// runFile runs a scheduler with a configuration file that is wrong.
func runFile(t *testing.T, shared bool, content string) (file string, err error) {
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
	}).Run(ctx, func() {})
	return file, err
}

func TestFileHasBadTimes(t *testing.T) {
	file, err := runFile(t, true, "leaderElection: {leaseDuration: 15500ms}\n")
	if err == nil || !strings.Contains(err.Error(), "--kube-scheduler-arg config="+file+", leaderElection: ") || !strings.Contains(err.Error(), "whole seconds") {
		t.Errorf("got %v, want an error that names %s", err, file)
	}
}

// Where there is no election, the file is read once, by the start.
func TestConfigurationIsMadeOnce(t *testing.T) {
	if file, err := runFile(t, false, "parallelism: many\n"); err == nil || !strings.Contains(err.Error(), "parallelism") {
		t.Errorf("got %v, want an error about parallelism in %s", err, file)
	}
}
