//go:build tools

// Package conformance holds the lists of Conformance tests that scripts/conformance runs.
package conformance

// Upstream's suite is built by its own name. This makes go.mod have what it needs.
import _ "k8s.io/kubernetes/test/e2e"
