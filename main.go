// Command karve is a Kubernetes control plane in one process. Its commands are in
// package command, what they run in package server.
package main

import (
	"github.com/karve-k8s/karve/command"
	"github.com/karve-k8s/karve/internal/memory/initially"
)

func main() {
	initially.Done()
	command.Main()
}
