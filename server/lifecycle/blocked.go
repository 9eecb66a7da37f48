package lifecycle

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/karve-k8s/karve/internal/logbridge"
)

// A bad webhook, policy, quota or role can block parts that work through the API. A blocked part tries
// again, and the API server goes on, so that an administrator can remove the cause.

// logBlockedEvery is how often the same reason is logged.
const logBlockedEvery = 10 * time.Minute

// blockage is what blocks a part.
type blockage struct {
	reason error // nil: nothing
	logged string
	at     time.Time // of the log
}

// Blocked returns a function that reports what blocks a part, and returns it with the remedy. With
// nil, nothing blocks it any more.
func (s *Start) Blocked(part string) func(error) error {
	return func(err error) error {
		err = Explain(err)
		if s.block(part, err) {
			s.Log.Warnf("the %s cannot begin; trying again: %v", part, err)
			if !s.IsReady() && !s.IsStopping() {
				_ = s.systemd.Status("not ready: " + s.reasons()) // systemd may be busy
			}
		}
		return err
	}
}

// SetBlocked is Blocked for a part that does not report its own health.
func (s *Start) SetBlocked(part string) func(error) {
	report := s.Blocked(part)
	return func(err error) { _ = report(err) }
}

// block records what blocks a part, and reports whether it should be logged.
func (s *Start) block(part string, err error) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.blocked[part]
	if b == nil {
		b = &blockage{}
		s.blocked[part] = b
	}
	b.reason = err
	if err == nil {
		return false
	}
	s.tell()
	if text, now := err.Error(), time.Now(); b.logged != text || now.Sub(b.at) >= logBlockedEvery {
		b.logged, b.at = text, now
		return true
	}
	return false
}

// unblock forgets what has blocked the parts.
func (s *Start) unblock() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.blocked {
		b.reason = nil
	}
}

// Reason returns what blocks a part, or nil.
func (s *Start) Reason(part string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.blocked[part]; b != nil {
		return b.reason
	}
	return nil
}

// reasons names the parts that are blocked, and why.
func (s *Start) reasons() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, part := range slices.Sorted(maps.Keys(s.blocked)) {
		if reason := s.blocked[part].reason; reason != nil {
			all = append(all, fmt.Sprintf("%s: %v", part, reason))
		}
	}
	return strings.Join(all, "; ")
}

// refusals are what the API server says when it refuses a request, and the remedies. The first that matches counts.
var refusals = []struct {
	says   *regexp.Regexp
	remedy string
}{
	{regexp.MustCompile(`(?:failed calling|admission) webhook "`),
		"repair the webhook, or delete its configuration: kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations"},
	{regexp.MustCompile(`ValidatingAdmissionPolicy '[^']+' with binding '([^']+)' denied request`),
		"repair the policy, or remove it: kubectl delete validatingadmissionpolicybinding $1"},
	{regexp.MustCompile(`policy '[^']+' with binding '([^']+)' denied request`),
		"repair the policy, or remove it: kubectl delete mutatingadmissionpolicybinding $1"},
	{regexp.MustCompile(`exceeded quota: ([^,\s]+)`),
		"raise the quota, or remove it: kubectl delete resourcequota --namespace kube-system $1"},
	{regexp.MustCompile(`system:serviceaccount:kube-system:(\S+): Unauthorized`),
		`if the service account is being deleted and a finalizer holds it: kubectl patch serviceaccount --namespace kube-system $1 --type merge --patch '{"metadata":{"finalizers":null}}'`},
	{regexp.MustCompile(`User "system:serviceaccount:kube-system:([^"]+)" cannot `),
		"the next start makes the role anew after: kubectl delete clusterrole,clusterrolebinding system:controller:$1"},
	{regexp.MustCompile(`User "(system:[^"]+)" cannot `),
		"the next start makes the role anew after: kubectl delete clusterrole,clusterrolebinding $1"},
}

// Explain adds the remedy to the refusal of a request.
func Explain(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	remedy := logbridge.Remedy(text)
	for _, r := range refusals {
		if at := r.says.FindStringSubmatchIndex(text); at != nil {
			remedy = string(r.says.ExpandString(nil, r.remedy, text, at))
			break
		}
	}
	if remedy == "" {
		return err
	}
	return fmt.Errorf("%w (%s)", err, remedy)
}
