package logbridge

import (
	"regexp"
	"strings"
	"sync/atomic"

	"github.com/sirupsen/logrus"
)

// demotion is a warning or error of a library that means nothing to a user. It is written
// at debug, with the reason in the field "demoted".
type demotion struct {
	// line matches the message, a colon and the error.
	line *regexp.Regexp
	// field and value are a field of the event; empty is no condition.
	field, value string
	// reason says why nobody needs to act.
	reason string
}

var isStopping atomic.Bool

// Stopping records whether the server has been told to stop. A stop ends requests, watches and waits, about
// which libraries log many warnings and errors: until Stopping(false), those of the whole process are demoted.
func Stopping(now bool) { isStopping.Store(now) }

// Reasons that tests look for.
const (
	atTheStop   = "the server stops"               // and ends what was under way
	terminating = "the namespace is being deleted" // and refuses new objects
)

// demotions is what a healthy server logs: at its start and stop, idle, with simulated nodes and with nodes that join. Keep each row
// narrow: one that is too broad hides the next real problem. TestUpstreamHasTheseLines has their places in upstream's source.
var demotions = []demotion{
	row(`^(Skipping API |The manifest file is empty, ignoring\.|Flexvolume plugin directory at)`, "it is off by default, or not configured"),
	row(`^(Resetting endpoints for master service|Found stale data, removed previous endpoints on kubernetes service)`, "every start and stop does that"),
	row(`namespaces "kube-system" not found$`, "the namespace is being created, and the caller tries again"),
	row(`^Getting lastest possible tracked_since time: .*not found`, "the API server is about to create it, and the controller asks again"),
	row(`^unable to register metrics: duplicate metrics collector registration attempted`, "an earlier control plane of this process has registered them"),
	row(`^Failed to watch cert and key file, will retry later: .*too many open files`, "the file is read every minute all the same"),
	// Upstream makes the storage of service accounts twice, and ends the first with its watch (kubernetes
	// pkg/registry/core/rest/storage_core.go). With a client that ends its watch early, it is the same.
	row(`^failed to sync with latest state: .*context canceled`, "its client has ended the watch"),
	row(`^Unhandled Error: .*is not allocated; repairing`, "the first start creates the Service before its address, and this allocates it"),
	// Upstream waits for the objects of new kinds for 30 s, and Karve for one.
	row(`^Unhandled Error: .*timed out waiting for dependency graph builder sync`, "the garbage collector does not wait for them, and what keeps them away is logged, too"),
	row(`loopback server is closed: connection refused|^Failed to encode watch event: .*loopback response body is closed`, "a client or a control plane of this process has ended"),

	// Only the API server's own admission logs the first error.
	row(`unable to create new content in namespace \S+ because it is being terminated|^Server rejected event \(will not retry!\): .*namespaces "[^"]+" not found`, terminating),
	row(`[ :](pods|persistentvolumeclaims|resourcequotas|replicationcontrollers|(replicasets|daemonsets|deployments|statefulsets)\.apps|(jobs|cronjobs)\.batch|`+
		`poddisruptionbudgets\.policy|horizontalpodautoscalers\.autoscaling) "[^"]+" not found$|is being deleted, cannot be assigned to a host|: pvc \S+ is being deleted$|^Failed to get node: node "" not found$`,
		"the object was deleted meanwhile, and the controller's cache is behind"),
	row(`^Terminating all watchers from cacher `, "its clients list and watch again, and the cause is logged, too"),
	{regexp.MustCompile(`^Failed to watch: .*the server could not find the requested resource`), "type", "*v1.PartialObjectMetadata",
		"the type was deleted, and the controllers stop watching it soon"},

	row(`is not as new as written version|failed to patch node CIDR: Node "[^"]+" is invalid: .*: may specify no more than one CIDR for each IP family`,
		"the controller waits for its own write, and tries again"),
	row(`Operation cannot be fulfilled on \S+ "[^"]+": the object has been modified`, "the object was changed meanwhile, and the writer tries again"),
	row(`^(Failed to update lease|Error retrieving lease lock): .*context canceled`, "the lease has changed meanwhile, and the candidate tries again"),
	row(`this server no longer leads|^Error initially creating lease lock: .*already exists`, "another server leads"),

	// Simulated nodes run upstream's code for kubelets.
	row(`^Unhandled Error: error forwarding port \S+ to pod \S+, uid : simulated: `, "the client of the port-forward has this error"),
	// DynamicResources.PostFilter reads state that its PreFilter has not written, if another
	// plugin's PreFilter has refused the Pod: every Pod with an unbound volume.
	{regexp.MustCompile(`^Status after running PostFilter plugins for pod`), "status", "not found", "the scheduler looked for a claim of a Pod that has none"},
}

func row(line, reason string) demotion {
	return demotion{line: regexp.MustCompile(line), reason: reason}
}

// demoted returns why an event means nothing to a user. ok is false if no row of table
// applies.
func demoted(table []demotion, message, errText string, fields logrus.Fields) (reason string, ok bool) {
	// Events that could not be sent to an audit backend are in the log only.
	if isStopping.Load() && !strings.HasPrefix(message, "Error in audit plugin") {
		return atTheStop, true
	}
	line := message
	if errText != "" {
		line += ": " + errText
	}
	for _, d := range table {
		if d.line.MatchString(line) && (d.field == "" || fields[d.field] == d.value) {
			return d.reason, true
		}
	}
	return "", false
}
