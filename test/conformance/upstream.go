//go:build tools

package main

// Upstream's suite is built by its own name. This makes go.mod have what it needs.
import _ "k8s.io/kubernetes/test/e2e"
