package durability

import (
	"bufio"
	"cmp"
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
		Spec json.RawMessage
	} `json:"requestObject"`
	Response struct {
		Metadata Metadata
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

// ReadAudit reads the audit log of one process, which [AuditPolicy] made: the writes whose answers have a revision. The answers to deletions and
// bindings have none. The last line may be incomplete, because the process was killed.
func ReadAudit(log io.Reader) ([]Act, error) {
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
	identity := ""
	for i, r := range all {
		newest[i+1] = max(newest[i], r.Response.Metadata.Revision())
		holder, err := r.candidate()
		if err != nil {
			return nil, err
		}
		if holder != "" && identity != "" && holder != identity {
			return nil, fmt.Errorf("audit log: one process wrote leases as %s and as %s", identity, holder)
		}
		identity = cmp.Or(identity, holder)
	}
	var acts []Act
	for _, r := range all {
		lease, revision := r.lease(), r.Response.Metadata.Revision()
		before, _ := slices.BinarySearchFunc(all, r.Received, func(r record, at time.Time) int { return r.Answered.Compare(at) })
		if lease == "" || r.Status.Code >= 300 || revision <= newest[before] { // an answer that is older than the request: the write changed nothing
			continue
		}
		what := fmt.Sprintf("%s %s/%s %s/%s (%s)", r.Verb, r.ObjectRef.Resource, r.ObjectRef.Subresource, r.ObjectRef.Namespace, r.ObjectRef.Name, r.User.Username)
		acts = append(acts, Act{lease, identity, what, revision})
	}
	if identity == "" && len(acts) > 0 {
		return nil, fmt.Errorf("a server that never had a lease did %d writes of a leader, the first one: %s", len(acts), acts[0].What)
	}
	return acts, nil
}

// candidate is the identity in a write of the process's elector, or empty.
func (r *record) candidate() (string, error) {
	if !strings.HasSuffix(r.UserAgent, "/leader-election") || r.ObjectRef.Resource != "leases" {
		return "", nil
	}
	var spec struct{ HolderIdentity string } // empty when it gives the lease back
	if err := json.Unmarshal(r.Request.Spec, &spec); err != nil {
		return "", fmt.Errorf("audit log: write of lease %s: %w", r.ObjectRef.Name, err)
	}
	return spec.HolderIdentity, nil
}
