package logbridge

import (
	"strings"
	"sync/atomic"
)

// Noise is a message of a library that is known to be harmless here. It is
// written at debug, with the reason in the field "demoted".
type Noise struct {
	// Prefix is how the message begins. It must not be empty.
	Prefix string
	// Error is a part of the error that comes with it; empty: any error or none.
	// (Much of Kubernetes' log has the message "Unhandled Error".)
	Error string
	// Stopping: it is harmless only after Stopping(true).
	Stopping bool
	// Reason says why nobody needs to act on it.
	Reason string
}

var isStopping atomic.Bool

// Stopping says whether the server has been told to stop, which ends requests
// that are under way: what is said about that is not worth an error.
func Stopping(now bool) { isStopping.Store(now) }

// stoppedEarly is the reason for what upstream only says when it is told to stop
// while it starts: its waits for caches have no other end.
const stoppedEarly = "stopped while it started"

// underWay is the reason for what is said about requests that a stop has ended.
const underWay = "stopped with a request under way"

// Demote is the table of warnings and errors that are written at debug. Keep it
// short: a row that is too broad hides the next real problem.
var Demote = []Noise{
	{Prefix: "Skipping API ", Reason: "a version that is off by default"},
	{Prefix: "The manifest file is empty, ignoring.", Reason: "no static admission manifests are configured"},
	{Prefix: "Failed to ensure lease exists, will retry", Error: `namespaces "kube-system" not found`, Reason: "the namespace is being made"},
	{Prefix: "Error while syncing ConfigMap", Error: `namespaces "kube-system" not found`, Reason: "the namespace is being made, and it tries again"},
	{Prefix: "Flexvolume plugin directory at", Reason: "there are no Flexvolume plugins"},
	{Prefix: "Resetting endpoints for master service", Reason: "every start and stop does that"},
	{Prefix: "Found stale data, removed previous endpoints on kubernetes service", Reason: "with one API server every start says so"},
	{Prefix: "Unable to remove endpoints from kubernetes service: StorageError: key not found", Reason: "stopped before they were made"},
	{Prefix: "Unable to remove peer endpoint leases: StorageError: key not found", Reason: "there are no peers"},
	{Prefix: "Unable to sync caches", Reason: stoppedEarly},
	{Prefix: "Timed out waiting for caches to sync", Reason: stoppedEarly},
	{Prefix: "Timed out waiting for quota monitor sync", Reason: stoppedEarly},
	{Prefix: "Unable start event watcher (will not retry!)", Error: "broadcaster already stopped", Reason: stoppedEarly},
	{Prefix: "Error removing old endpoints from kubernetes service: no API server IP addresses were listed in storage", Reason: stoppedEarly},
	{Prefix: "Unhandled Error", Error: "http: Handler timeout", Stopping: true, Reason: underWay},
	{Prefix: "Timeout or abort while handling", Stopping: true, Reason: underWay},
	{Prefix: "Error on socket receive", Error: "use of closed network connection", Stopping: true, Reason: underWay},
	{Prefix: "Post-timeout activity", Stopping: true, Reason: underWay},
	{Prefix: "Getting lastest possible tracked_since time", Error: "not found", Reason: "the API server is about to make it, and it is asked for again"},
	{Prefix: "Unhandled Error", Error: "timed out waiting for caches to sync", Reason: stoppedEarly},
	{Prefix: "Unhandled Error", Error: "Unable to sync caches for", Reason: stoppedEarly},
	{Prefix: "Unhandled Error", Error: "unable to sync caches for", Reason: stoppedEarly},
	{Prefix: "Unhandled Error", Error: "timed out waiting for dependency graph builder sync", Reason: stoppedEarly},
	{Prefix: "Unhandled Error", Error: "is not allocated; repairing", Reason: "the first start makes the Service before its address, and this allocates it"},
	{Prefix: "Server rejected event (will not retry!)", Error: "because it is being terminated", Reason: "what happens in a namespace on its way out"},
	{Prefix: "Failed to encode watch event", Error: "loopback response body is closed", Reason: "an informer of this process has ended its watch"},
	{Prefix: "Unhandled Error", Error: "is not as new as written version", Reason: "the controller waits for its own write and tries again"},
}

// canceled is what a request answers that was ended by who made it. While the
// server stops, that is the server.
const canceled = "context canceled"

func harmless(table []Noise, message, errText string) (reason string, ok bool) {
	if isStopping.Load() && (strings.Contains(message, canceled) || strings.Contains(errText, canceled)) {
		return underWay, true
	}
	for _, n := range table {
		if n.Stopping && !isStopping.Load() {
			continue
		}
		if n.Prefix != "" && strings.HasPrefix(message, n.Prefix) && strings.Contains(errText, n.Error) {
			return n.Reason, true
		}
	}
	return "", false
}
