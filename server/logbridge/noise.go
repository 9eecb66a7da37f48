package logbridge

import "strings"

// Noise is a message of a library that is known to be harmless here. It is
// written at debug, with the reason in the field "demoted".
type Noise struct {
	// Prefix is how the message begins. It must not be empty.
	Prefix string
	// Error is a part of the error that comes with it; empty: any error or none.
	// (Much of Kubernetes' log has the message "Unhandled Error".)
	Error string
	// Reason says why nobody needs to act on it.
	Reason string
}

// stoppedEarly is the reason for what upstream only says when it is told to stop
// while it starts: its waits for caches have no other end.
const stoppedEarly = "stopped while it started"

// Demote is the table of warnings and errors that are written at debug. Keep it
// short: a row that is too broad hides the next real problem.
var Demote = []Noise{
	{Prefix: "Skipping API ", Reason: "a version that is off by default"},
	{Prefix: "The manifest file is empty, ignoring.", Reason: "no static admission manifests are configured"},
	{Prefix: "Failed to ensure lease exists, will retry", Error: `namespaces "kube-system" not found`, Reason: "the namespace is being made"},
	{Prefix: "Error while syncing ConfigMap", Error: `namespaces "kube-system" not found`, Reason: "the namespace is being made, and it tries again"},
	{Prefix: "Flexvolume plugin directory at", Reason: "there are no Flexvolume plugins"},
	{Prefix: "Resetting endpoints for master service", Reason: "every start and stop does that"},
	{Prefix: "Unable to remove endpoints from kubernetes service: StorageError: key not found", Reason: "stopped before they were made"},
	{Prefix: "Unable to remove peer endpoint leases: StorageError: key not found", Reason: "there are no peers"},
	{Prefix: "Unable to sync caches", Reason: stoppedEarly},
	{Prefix: "Timed out waiting for caches to sync", Reason: stoppedEarly},
	{Prefix: "Timed out waiting for quota monitor sync", Reason: stoppedEarly},
	{Prefix: "Unable start event watcher (will not retry!)", Error: "broadcaster already stopped", Reason: stoppedEarly},
	{Prefix: "Error removing old endpoints from kubernetes service: no API server IP addresses were listed in storage", Reason: stoppedEarly},
	{Prefix: "Device taint processing leading to Pod eviction failed", Error: "context canceled", Reason: stoppedEarly},
	{Prefix: "Service account work item failed", Error: "context canceled", Reason: stoppedEarly},
	{Prefix: "Unhandled Error", Error: "timed out waiting for caches to sync", Reason: stoppedEarly},
	{Prefix: "Unhandled Error", Error: "Unable to sync caches for", Reason: stoppedEarly},
	{Prefix: "Unhandled Error", Error: "unable to sync caches for", Reason: stoppedEarly},
	{Prefix: "Unhandled Error", Error: "timed out waiting for dependency graph builder sync", Reason: stoppedEarly},
	{Prefix: "Unhandled Error", Error: "is not allocated; repairing", Reason: "the first start makes the Service before its address, and this allocates it"},
	{Prefix: "Server rejected event (will not retry!)", Error: "because it is being terminated", Reason: "what happens in a namespace on its way out"},
	{Prefix: "Unhandled Error", Error: "is not as new as written version", Reason: "the controller waits for its own write and tries again"},
}

func harmless(table []Noise, message, errText string) (reason string, ok bool) {
	for _, n := range table {
		if n.Prefix != "" && strings.HasPrefix(message, n.Prefix) && strings.Contains(errText, n.Error) {
			return n.Reason, true
		}
	}
	return "", false
}
