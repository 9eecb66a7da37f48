package logbridge

import (
	"strings"
	"sync/atomic"

	"github.com/sirupsen/logrus"
)

// Demotion is a warning or error of a library that means nothing to a user. It is written
// at debug, with the reason in the field "demoted".
type Demotion struct {
	// Message is how the message begins. Empty is any message; then Error is needed.
	Message string
	// Error is a pattern of a part of the error: each * stands for one word or a part of it.
	// Empty is any error, or none. (Much of Kubernetes' log has the message "Unhandled
	// Error".) An event without an error may have it in its message, after Message.
	Error string
	// Begins limits the row to errors that begin with Error.
	Begins bool
	// Field and Value are a field of the event; empty is no condition.
	Field, Value string
	// Reason says why nobody needs to act.
	Reason string
}

var isStopping atomic.Bool

// Stopping records whether the server has been told to stop. A stop ends requests, watches and waits, about
// which libraries log many warnings and errors: until Stopping(false), those of the whole process are demoted.
func Stopping(now bool) { isStopping.Store(now) }

// These are reasons that several rows have.
const (
	atTheStop    = "the server stops"                 // and ends what was under way
	startedFirst = "the namespace is being created"   // and the caller tries again
	terminating  = "the namespace is being deleted"   // and refuses new objects
	gone         = "the object was deleted meanwhile" // the controller's cache is behind
	conflict     = "the object was changed meanwhile" // the controller tries again
	otherLeads   = "another server was faster"        // and leads now
	wokenUp      = "the lease has changed meanwhile"  // and the candidate tries again
	answered     = "the webhook's answer is the client's"
	behind       = "the controller waits for its own write, and tries again"
)

// unusedClaim is a message of the controller that protects PersistentVolumeClaims.
const unusedClaim = "Error updating Unused condition in PVC status"

// demotions is the table. Keep each row narrow: one that is too broad hides the next real
// problem.
var demotions = []Demotion{
	// Messages of a start.
	{Message: "Skipping API ", Reason: "a version that is off by default"},
	{Message: "The manifest file is empty, ignoring.", Reason: "no static admission manifests are configured"},
	{Message: "Flexvolume plugin directory at", Reason: "there are no Flexvolume plugins"},
	{Message: "Failed to watch cert and key file, will retry later", Error: "too many open files", Reason: "the file is read every minute all the same"},
	{Message: "Resetting endpoints for master service", Reason: "every start and stop does that"},
	{Message: "Found stale data, removed previous endpoints on kubernetes service", Reason: "with one API server, every start logs it"},
	{Message: "Failed to ensure lease exists, will retry", Error: `namespaces "kube-system" not found`, Reason: startedFirst},
	{Message: "Error while syncing ConfigMap", Error: `namespaces "kube-system" not found`, Reason: startedFirst},
	{Message: "Getting lastest possible tracked_since time", Error: "not found", Reason: "the API server is about to create it, and the controller asks again"},
	{Message: "unable to register metrics", Error: "duplicate metrics collector registration attempted", Reason: "an earlier control plane of this process has registered them"},
	// Upstream makes the storage of service accounts twice, and ends the first with its watch (kubernetes
	// pkg/registry/core/rest/storage_core.go). With a client that ends its watch early, it is the same.
	{Message: "failed to sync with latest state: ", Error: canceled, Reason: "its client has ended the watch"},
	{Message: "Unhandled Error", Error: "is not allocated; repairing", Reason: "the first start creates the Service before its address, and this allocates it"},

	// Upstream waits for the objects of new kinds for 30 s, and Karve for one.
	{Message: "Unhandled Error", Error: "timed out waiting for dependency graph builder sync", Reason: "the garbage collector does not wait for them, and what keeps them away is logged, too"},
	// Messages of an end.
	{Error: "loopback server is closed: connection refused", Reason: "a control plane of this process has ended before its client"},
	{Message: "Failed to encode watch event", Error: "loopback response body is closed", Reason: "an informer of this process has ended its watch"},

	// Namespaces and objects that are being deleted. Only the API server's own admission logs
	// the first error.
	{Error: "unable to create new content in namespace * because it is being terminated", Reason: terminating},
	{Message: "Server rejected event (will not retry!)", Error: `namespaces "*" not found`, Reason: terminating},
	{Message: "Unhandled Error", Error: `sync "*" failed with replicasets.apps "*" not found`, Reason: gone},
	{Message: "Unhandled Error", Error: `sync "*" failed with replicationcontrollers "*" not found`, Reason: gone},
	{Message: "Unhandled Error", Error: `: daemonsets.apps "*" not found`, Reason: gone},
	{Message: "Unhandled Error", Error: `syncing job: tracking status: * uncounted pods * status: jobs.batch "*" not found`, Reason: gone},
	{Message: "Unhandled Error", Error: `syncing job: jobs.batch "*" not found`, Reason: gone},
	{Message: "Unhandled Error", Error: `error syncing CronJobController *, requeuing: cronjobs.batch "*" not found`, Reason: gone},
	{Message: "Unhandled Error", Error: `failed to query scale subresource for *: * "*" not found`, Reason: gone},
	{Message: "Unhandled Error", Error: `error getting latest scale for * during conflict retry: * "*" not found`, Reason: gone},
	{Message: "Unhandled Error", Error: `failed to rescale *: * "*" not found`, Reason: gone},
	{Message: "Unhandled Error", Error: `failed to update status for *: horizontalpodautoscalers.autoscaling "*" not found`, Reason: gone},
	{Message: "Error syncing StatefulSet, requeuing", Error: `statefulsets.apps "*" not found`, Reason: gone},
	{Message: "Error syncing StatefulSet, requeuing", Error: "pvc * is being deleted", Reason: gone},
	{Message: "Error syncing PodDisruptionBudget, requeuing", Error: `poddisruptionbudgets.policy "*" not found`, Reason: gone},
	{Message: "Failed to sync PDB", Error: `poddisruptionbudgets.policy "*" not found`, Reason: gone},
	{Message: "Error processing resource quota work item", Error: `resourcequotas "*" not found`, Reason: gone},
	{Message: "Plugin Failed", Error: `pods "*" not found`, Reason: gone},
	{Message: "Plugin Failed", Error: "is being deleted, cannot be assigned to a host", Reason: gone},
	{Message: "Error scheduling pod; retrying", Error: `running Bind plugin "DefaultBinder": pods "*" not found`, Reason: gone},
	{Message: "Error scheduling pod; retrying", Error: "is being deleted, cannot be assigned to a host", Reason: gone},
	{Message: "Error updating pod", Error: `pods "*" not found`, Reason: gone},

	// Types that are deleted or change.
	{Message: "Terminating all watchers from cacher ", Reason: "its clients list and watch again, and the cause is logged, too"},
	{Message: "Failed to watch", Error: "the server could not find the requested resource", Field: "type", Value: "*v1.PartialObjectMetadata", Reason: "the type was deleted, and the controllers stop watching it soon"},

	// Admission webhooks that refuse an object. One that cannot be asked is a problem. Most controllers whose
	// objects are refused have it in the middle of their error; the others record it in a condition or an event.
	{Message: `rejected by webhook "`, Error: `": &errors.StatusError{ErrStatus:v1.Status{`, Reason: answered},
	{Message: "Unhandled Error", Error: `admission webhook "*" denied the request`, Begins: true, Reason: answered}, // all but the first that refuse it

	// Controllers that try again with the current object.
	{Error: "is not as new as written version", Reason: behind},
	{Error: `failed to patch node CIDR: Node "*" is invalid: [spec.podCIDRs: Invalid value: *: may specify no more than one CIDR for each IP family`, Reason: behind},
	{Message: "Unhandled Error", Error: `sync "*" failed with Operation cannot be fulfilled on * "*": the object has been modified`, Reason: conflict},
	{Message: "Unhandled Error", Error: `failed with : Operation cannot be fulfilled on * "*": the object has been modified`, Reason: conflict},
	{Message: "Unhandled Error", Error: `syncing job: tracking status: * uncounted pods * status: Operation cannot be fulfilled on jobs.batch "*": the object has been modified`, Reason: conflict},
	{Message: "Error syncing StatefulSet, requeuing", Error: `Operation cannot be fulfilled on * "*": the object has been modified`, Reason: conflict},
	{Message: "Error syncing PodDisruptionBudget, requeuing", Error: `Operation cannot be fulfilled on * "*": the object has been modified`, Reason: conflict},
	{Error: `Operation cannot be fulfilled on resourcequotas "*": the object has been modified`, Reason: conflict},
	// The controller writes the condition Unused of claims since 1.37.
	{Message: unusedClaim, Error: `Operation cannot be fulfilled on persistentvolumeclaims "*": `, Reason: conflict},
	{Message: unusedClaim, Error: `persistentvolumeclaims "*" not found`, Reason: gone},
	{Message: "Unhandled Error", Error: `PVC * failed with: Operation cannot be fulfilled on persistentvolumeclaims "*": `, Reason: conflict},
	{Message: "Unhandled Error", Error: `PVC * failed with: persistentvolumeclaims "*" not found`, Reason: gone},

	// Leader election.
	{Message: "Failed to update lease", Error: `Operation cannot be fulfilled on leases.coordination.k8s.io "kube-*": the object has been modified`, Reason: otherLeads},
	{Message: "Error initially creating lease lock", Error: `leases.coordination.k8s.io "*" already exists`, Reason: otherLeads},
	{Message: "Failed to update lease", Error: canceled, Reason: wokenUp},
	{Message: "Error retrieving lease lock", Error: canceled, Reason: wokenUp},
	{Error: "this server no longer leads", Reason: "the requests of what a former leader ran are refused"},

	// Simulated nodes run upstream's code for kubelets.
	{Message: "Unhandled Error", Error: "error forwarding port * to pod *, uid : simulated: ", Reason: "the client of the port-forward has this error"},

	// DynamicResources.PostFilter reads state that its PreFilter has not written, if another
	// plugin's PreFilter has refused the Pod: every Pod with an unbound volume.
	{Message: "Status after running PostFilter plugins for pod", Field: "status", Value: "not found", Reason: "the scheduler looked for a claim of a Pod that has none"},
}

// canceled is the error of a request that its client has cancelled.
const canceled = "context canceled"

// demotion returns why an event means nothing to a user. ok is false if no row of table
// applies.
func demotion(table []Demotion, message, errText string, fields logrus.Fields) (reason string, ok bool) {
	// Events that could not be sent to an audit backend are in the log only.
	if isStopping.Load() && !strings.HasPrefix(message, "Error in audit plugin") {
		return atTheStop, true
	}
	for _, d := range table {
		if d.applies(message, errText, fields) {
			return d.Reason, true
		}
	}
	return "", false
}

func (d *Demotion) applies(message, errText string, fields logrus.Fields) bool {
	if !strings.HasPrefix(message, d.Message) || d.Field != "" && fields[d.Field] != d.Value {
		return false
	}
	if errText == "" {
		errText = message[len(d.Message):]
	}
	if d.Begins {
		return begins(errText, d.Error)
	}
	return contains(errText, d.Error)
}

// contains reports whether a part of text matches pattern, in which * stands for any number
// of characters other than a space.
func contains(text, pattern string) bool {
	for i := range len(text) + 1 {
		if begins(text[i:], pattern) {
			return true
		}
	}
	return false
}

func begins(text, pattern string) bool {
	literal, rest, wildcard := strings.Cut(pattern, "*")
	text, ok := strings.CutPrefix(text, literal)
	if !ok || !wildcard {
		return ok
	}
	for i := 0; ; i++ {
		if begins(text[i:], rest) {
			return true
		}
		if i == len(text) || text[i] == ' ' {
			return false
		}
	}
}
