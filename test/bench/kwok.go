package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
)

// kwokModule is what simulated nodes are compared with. It is no tool of go.mod, because it needs an older Kubernetes.
const kwokModule, kwokVersion = "sigs.k8s.io/kwok", "v0.8.0"

// kwok simulates nodes in a cluster of Karve's.
type kwok struct {
	binary string
	stages []string // what it does, as files
}

// buildKwok installs kwok in the directory of the peers.
func buildKwok(ctx context.Context, stderr io.Writer) (*kwok, error) {
	dir, err := buildDir()
	if err != nil {
		return nil, err
	}
	dir = filepath.Join(dir, "peers")
	cmd := exec.CommandContext(ctx, "go", "install", "-ldflags", "-s -w", kwokModule+"/cmd/kwok@"+kwokVersion)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOBIN="+dir)
	if err := build(ctx, stderr, "kwok", cmd); err != nil {
		return nil, err
	}
	text, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", kwokModule+"@"+kwokVersion).Output()
	if err != nil {
		return nil, fmt.Errorf("find the stages of kwok: %w", err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(text, &module); err != nil {
		return nil, fmt.Errorf("find the stages of kwok: %w", err)
	}
	k := &kwok{binary: filepath.Join(dir, "kwok")}
	for _, of := range []string{"node/fast/node-*", "node/heartbeat-with-lease/node-*", "pod/fast/pod-*"} { // its stage/fast
		files, _ := filepath.Glob(filepath.Join(module.Dir, "kustomize/stage", of+".yaml"))
		k.stages = append(k.stages, files...)
	}
	return k, nil
}

// start starts kwok for a cluster, and makes the Nodes that it simulates.
func (k *kwok) start(ctx context.Context, c *cluster, probe *prober, dir string, nodes int) error {
	args := []string{"--kubeconfig", filepath.Join(dir, "admin.kubeconfig"), "--manage-all-nodes", "--node-lease-duration-seconds", "40"}
	for _, file := range k.stages {
		args = append(args, "--config", file)
	}
	err := c.start(dir, "kwok", k.binary, args...)
	for i := 0; i < nodes && err == nil; i++ {
		_, err = probe.do(ctx, http.MethodPost, "/api/v1/nodes", fmt.Appendf(nil, `{"metadata": {"name": "kwok-%d", "labels": {"kubernetes.io/hostname": "kwok-%[1]d"}}}`, i))
	}
	return err
}
