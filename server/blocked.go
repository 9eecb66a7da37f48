package server

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/karve-k8s/karve/internal/logbridge"
)

// A bad webhook, policy, quota or role can block parts that work through the API. A blocked part tries
// again, and the API server goes on, so that an administrator can remove the cause.

// admitAfter is how long a start may take from the moment at which the API server serves until
// administrators are let in. A part that reports that it is blocked lets them in at once.
const admitAfter = 30 * time.Second

// logBlockedEvery is how often the same reason is logged.
const logBlockedEvery = 10 * time.Minute

// blockedParts are the parts of a control plane that are blocked, and why.
type blockedParts struct {
	serves chan struct{} // closed when the API server begins to serve
	first  chan struct{} // closed when the first part is blocked

	announcing sync.Mutex // held while systemd is told how far the start is

	mu      sync.Mutex
	tell    func() // closes first
	reasons map[string]error
	logged  map[string]loggedReason
}

type loggedReason struct {
	text string
	at   time.Time
}

func (b *blockedParts) init() {
	b.serves, b.first = make(chan struct{}), make(chan struct{})
	b.tell = sync.OnceFunc(func() { close(b.first) })
	b.reasons, b.logged = map[string]error{}, map[string]loggedReason{}
}

// set records what blocks a part, and reports whether it should be logged. nil: nothing does.
func (b *blockedParts) set(part string, err error, now time.Time) (news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		delete(b.reasons, part)
		return false
	}
	b.reasons[part] = err
	b.tell()
	last, text := b.logged[part], err.Error()
	if last.text == text && now.Sub(last.at) < logBlockedEvery {
		return false
	}
	b.logged[part] = loggedReason{text, now}
	return true
}

// clear forgets what has blocked the parts.
func (b *blockedParts) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.reasons)
}

// reason returns what blocks a part, or nil.
func (b *blockedParts) reason(part string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reasons[part]
}

// String names the parts and their reasons.
func (b *blockedParts) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []string
	for _, part := range slices.Sorted(maps.Keys(b.reasons)) {
		all = append(all, fmt.Sprintf("%s: %v", part, b.reasons[part]))
	}
	return strings.Join(all, "; ")
}

// blockedPart returns a function that reports what blocks a part, and returns it with the remedy. With
// nil, nothing blocks it any more.
func (s *controlPlane) blockedPart(part string) func(error) error {
	return func(err error) error {
		err = explain(err)
		if s.blocked.set(part, err, time.Now()) {
			s.Log.Warnf("the %s cannot begin; trying again: %v", part, err)
			if !s.up.Load() && !s.stopping.Load() {
				_ = s.systemd.Status("not ready: " + s.blocked.String()) // systemd may be busy
			}
		}
		return err
	}
}

// setBlocked is blockedPart for a part that does not report its own health.
func (s *controlPlane) setBlocked(part string) func(error) {
	report := s.blockedPart(part)
	return func(err error) { _ = report(err) }
}

// admit lets administrators in while a start cannot be completed: the admin's kubeconfig is written, and
// systemd no longer waits. Otherwise it would stop the service again and again. It returns when that is done,
// or when running ends.
func (s *controlPlane) admit(running context.Context) {
	select {
	case <-s.blocked.serves:
	case <-running.Done():
		return
	}
	timer := time.NewTimer(admitAfter)
	defer timer.Stop()
	select {
	case <-s.blocked.first:
	case <-timer.C:
	case <-running.Done():
		return
	}
	s.blocked.announcing.Lock()
	defer s.blocked.announcing.Unlock()
	if s.up.Load() || running.Err() != nil {
		return
	}
	if err := s.certificates.Publish(); err != nil {
		s.Log.Errorf("write the administrator's kubeconfig: %v", err)
	}
	why := s.blocked.String()
	if why == "" {
		why = "the start takes long"
	}
	_ = s.systemd.Ready(fmt.Sprintf("serving at %s, but not ready: %s", s.claim.url(), why)) // if systemd cannot be reached, it does not stop this process either
	s.Log.Warnf("the API server serves at %s, but the start is not complete; the administrator's kubeconfig is %s", s.claim.url(), s.certificates.KubeconfigPath())
}

// What the API server says when it refuses a request.
var (
	ofWebhook = regexp.MustCompile(`(?:failed calling|admission) webhook "`)
	ofPolicy  = regexp.MustCompile(`(ValidatingAdmissionPolicy|policy) '[^']+' with binding '([^']+)' denied request`)
	ofQuota   = regexp.MustCompile(`exceeded quota: ([^,\s]+)`)
	ofAccount = regexp.MustCompile(`system:serviceaccount:kube-system:(\S+): Unauthorized`)
	ofRole    = regexp.MustCompile(`User "(system:[^"]+)" cannot `)
)

// serviceAccountPrefix begins the user name of a controller's service account, and controllerRole the name of its role.
const (
	serviceAccountPrefix = "system:serviceaccount:kube-system:"
	controllerRole       = "system:controller:"
)

// explain adds the remedy to the refusal of a request.
func explain(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	var remedy string
	if ofWebhook.MatchString(text) {
		remedy = "repair the webhook, or delete its configuration: kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations"
	} else if m := ofPolicy.FindStringSubmatch(text); m != nil {
		kind := "validatingadmissionpolicybinding"
		if m[1] == "policy" {
			kind = "mutatingadmissionpolicybinding"
		}
		remedy = "repair the policy, or remove it: kubectl delete " + kind + " " + m[2]
	} else if m := ofQuota.FindStringSubmatch(text); m != nil {
		remedy = "raise the quota, or remove it: kubectl delete resourcequota --namespace kube-system " + m[1]
	} else if m := ofAccount.FindStringSubmatch(text); m != nil {
		remedy = "if the service account is being deleted and a finalizer holds it: kubectl patch serviceaccount --namespace kube-system " + m[1] + ` --type merge --patch '{"metadata":{"finalizers":null}}'`
	} else if m := ofRole.FindStringSubmatch(text); m != nil {
		role := m[1]
		if name, ok := strings.CutPrefix(role, serviceAccountPrefix); ok {
			role = controllerRole + name
		}
		remedy = fmt.Sprintf("the next start makes the role anew after: kubectl delete clusterrole,clusterrolebinding %s", role)
	}
	if remedy = cmp.Or(remedy, logbridge.Remedy(text)); remedy == "" {
		return err
	}
	return fmt.Errorf("%w (%s)", err, remedy)
}
