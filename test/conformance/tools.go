//go:build tools

// Package conformance has lists of upstream's Conformance tests, for scripts/conformance.
package conformance

// Upstream's suite is built by its own name. This makes go.mod have what it needs.
import _ "k8s.io/kubernetes/test/e2e"
