package durability

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"
	"time"
)

// The leases of the servers that lead.
const (
	ControllersLease = "kube-controller-manager"
	SchedulerLease   = "kube-scheduler"
)

// A Tenure says that a lease has this holder from a revision on. The holder is empty if the lease was given
// back or deleted.
type Tenure struct {
	Lease, Holder string
	From          int64
}

// An Act is a write that only the holder of a lease may do.
type Act struct {
	Lease, Holder string // the holder is the identity of the server that wrote
	What          string // for people
	Revision      int64  // of the write
}

// TwoLeaders returns an error for each act at a revision at which the lease named another server, or none.
// Revisions order everything; clocks do not matter.
func TwoLeaders(tenures []Tenure, acts []Act) []error {
	byLease := map[string][]Tenure{}
	for _, t := range tenures {
		byLease[t.Lease] = append(byLease[t.Lease], t)
	}
	for _, all := range byLease {
		slices.SortFunc(all, func(a, b Tenure) int { return int(a.From - b.From) })
	}
	var problems []error
	for _, act := range acts {
		all := byLease[act.Lease]
		// The first one begins after the act.
		next := sort.Search(len(all), func(i int) bool { return all[i].From > act.Revision })
		var now Tenure
		if next > 0 {
			now = all[next-1]
		}
		if now.Holder == act.Holder && now.Holder != "" {
			continue
		}
		holder := now.Holder
		if holder == "" {
			holder = "nobody"
		}
		problems = append(problems, fmt.Errorf("revision %d: %s: %s, but the lease %s names %s since revision %d",
			act.Revision, act.Holder, act.What, act.Lease, holder, now.From))
	}
	return problems
}

// AuditPolicy makes a server record what [ReadAudit] reads.
const AuditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
omitManagedFields: true
rules:
- level: None
  verbs: [get, list, watch]
- level: None
  resources: [{group: "", resources: [serviceaccounts/token]}] # changes nothing, and answers with a secret
- level: RequestResponse
  users: [system:kube-controller-manager, system:kube-scheduler]
- level: RequestResponse
  userGroups: [system:serviceaccounts:kube-system]
- level: RequestResponse
  users: [kubernetes-admin] # also of simulated nodes
`

// An Audit is what one process has recorded.
type Audit struct {
	Identity string // in the leases; empty if the process never wanted one
	Acts     []Recorded
	Unknown  []Recorded // writes without a successful answer; they may have been carried out
}

// Recorded is a leader's write as its server has recorded it. The answers to deletions and bindings have no revision.
type Recorded struct {
	Act
	After   int64  // a revision before the write
	Deleted string // uid of what the write deleted, if the answer has no revision
	Bound   string // uid of the Pod that the write bound to a node
}

// record is an event of the audit log.
type record struct {
	User      struct{ Username string }
	UserAgent string
	Verb      string
	ObjectRef struct{ Resource, Subresource, Namespace, Name string }
	Received  time.Time          `json:"requestReceivedTimestamp"`
	Answered  time.Time          `json:"stageTimestamp"`
	Status    struct{ Code int } `json:"responseStatus"`
	Request   struct {
		Metadata Metadata
		Spec     json.RawMessage
	} `json:"requestObject"`
	Response struct {
		Kind     string
		Metadata Metadata
		Details  struct{ UID string }
	} `json:"responseObject"`
}

// lease is the lease that a server has to hold for the request, empty if it needs none.
func (r *record) lease() string {
	switch user := r.User.Username; {
	case strings.HasSuffix(r.UserAgent, "/leader-election"):
		return "" // of candidates
	case user == "system:kube-scheduler":
		return SchedulerLease
	case user == "system:kube-controller-manager", strings.HasPrefix(user, "system:serviceaccount:kube-system:"),
		strings.HasSuffix(r.UserAgent, "/simulated-kubelet"):
		return ControllersLease
	}
	return ""
}

// ReadAudit reads the audit log of one process, which [AuditPolicy] made. The last line may be incomplete, because the
// process was killed. Deletions of collections are left out: their answers do not say what they have deleted.
func ReadAudit(log io.Reader) (*Audit, error) {
	var all []record
	in := bufio.NewReader(log)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		var one record
		if err := json.Unmarshal(line, &one); err != nil {
			return nil, fmt.Errorf("audit log, line %d: %w", len(all)+1, err)
		}
		all = append(all, one)
	}
	slices.SortStableFunc(all, func(a, b record) int { return a.Answered.Compare(b.Answered) })
	// newest[i] is the newest revision in the first i answers.
	newest := make([]int64, len(all)+1)
	for i, r := range all {
		newest[i+1] = max(newest[i], r.Response.Metadata.Revision())
	}
	audit := &Audit{}
	for _, r := range all {
		if err := audit.identify(r); err != nil {
			return nil, err
		}
		lease := r.lease()
		if lease == "" || r.Status.Code >= 400 && r.Status.Code < 500 || r.Verb == "deletecollection" {
			continue
		}
		what := strings.Trim(r.ObjectRef.Resource+"/"+r.ObjectRef.Subresource, "/") + " " + strings.Trim(r.ObjectRef.Namespace+"/"+r.ObjectRef.Name, "/")
		done := Recorded{Act: Act{Lease: lease, What: fmt.Sprintf("%s %s (%s)", r.Verb, what, r.User.Username), Revision: r.Response.Metadata.Revision()}}
		if r.Status.Code >= 500 || r.Status.Code == 0 {
			audit.Unknown = append(audit.Unknown, done)
			continue
		}
		before, _ := slices.BinarySearchFunc(all, r.Received, func(r record, at time.Time) int { return r.Answered.Compare(at) })
		done.After = newest[before]
		switch {
		case done.Revision > done.After:
		case done.Revision > 0:
			continue // the answer is older than the request, so the write changed nothing
		case r.Verb == "delete" && r.Response.Details.UID != "":
			done.Deleted = r.Response.Details.UID
		case r.Verb == "delete" && r.Response.Metadata.UID != "":
			continue // somebody else was faster
		case r.ObjectRef.Subresource == "binding":
			done.Bound = r.Request.Metadata.UID
		default:
			return nil, fmt.Errorf("audit log: no revision in the answer to %s", done.What)
		}
		audit.Acts = append(audit.Acts, done)
	}
	if audit.Identity == "" && len(audit.Acts) > 0 {
		return nil, fmt.Errorf("a server that never had a lease did %d writes of a leader, the first one: %s", len(audit.Acts), audit.Acts[0].What)
	}
	for i := range audit.Acts {
		audit.Acts[i].Holder = audit.Identity
	}
	return audit, nil
}

// identify learns the identity of the process from a write of its elector's.
func (a *Audit) identify(r record) error {
	if !strings.HasSuffix(r.UserAgent, "/leader-election") {
		return nil
	}
	if r.ObjectRef.Resource != "leases" {
		return nil // an event
	}
	var spec struct{ HolderIdentity string }
	if err := json.Unmarshal(r.Request.Spec, &spec); err != nil {
		return fmt.Errorf("audit log: write of lease %s: %w", r.ObjectRef.Name, err)
	}
	switch {
	case spec.HolderIdentity == "": // it gives the lease back
	case a.Identity == "":
		a.Identity = spec.HolderIdentity
	case a.Identity != spec.HolderIdentity:
		return fmt.Errorf("audit log: one process wrote leases as %s and as %s", a.Identity, spec.HolderIdentity)
	}
	return nil
}
