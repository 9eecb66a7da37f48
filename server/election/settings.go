package election

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	componentconfig "k8s.io/component-base/config"
)

// Check returns every problem of the settings that a user gave with option, such as
// kube-scheduler-arg. set has upstream's flags, as they were given. shared says that other servers
// can use the datastore.
func Check(option string, s componentconfig.LeaderElectionConfiguration, set *pflag.FlagSet, shared bool) error {
	if s.LeaderElect && !shared {
		return fmt.Errorf("--%s: leader-elect=true: the built-in datastore serves one server: leave the option out; --etcd-listen shares this datastore, and --datastore-endpoint names another", option)
	}
	if !s.LeaderElect {
		var problems []error
		why := "of which there is none with leader-elect=false: leave out one of the two"
		if !shared {
			why = "of which there is none with the built-in datastore, because no other server can use it: leave it out"
		}
		set.VisitAll(func(f *pflag.Flag) {
			if f.Changed && strings.HasPrefix(f.Name, "leader-elect-") {
				problems = append(problems, fmt.Errorf("--%s: %s is for leader election, %s", option, f.Name, why))
			}
		})
		return errors.Join(problems...)
	}
	return Valid(option, s)
}

// Valid returns what an election with these settings would refuse. option is what has the settings,
// without dashes.
func Valid(option string, s componentconfig.LeaderElectionConfiguration) error {
	var problems []error
	add := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("--%s: "+format, append([]any{option}, args...)...))
	}
	lease, renew, retry := s.LeaseDuration.Duration, s.RenewDeadline.Duration, s.RetryPeriod.Duration
	if lease < time.Second || lease%time.Second != 0 { // upstream would cut it off
		add("leader-elect-lease-duration=%v: want whole seconds, at least one", lease)
	}
	if lease <= renew {
		add("leader-elect-lease-duration=%v: want more than leader-elect-renew-deadline, which is %v: a leader has to stop before another begins", lease, renew)
	}
	if least := time.Duration(leaderelection.JitterFactor * float64(retry)); retry <= 0 {
		add("leader-elect-retry-period=%v: want more than 0", retry)
	} else if renew <= least {
		add("leader-elect-renew-deadline=%v: want more than %v, which is %v times leader-elect-retry-period", renew, least, leaderelection.JitterFactor)
	}
	if s.ResourceLock != resourcelock.LeasesResourceLock {
		add("leader-elect-resource-lock=%s: want %s", s.ResourceLock, resourcelock.LeasesResourceLock)
	}
	if s.ResourceName == "" {
		add("leader-elect-resource-name is empty: want the name of a Lease")
	}
	if s.ResourceNamespace == "" {
		add("leader-elect-resource-namespace is empty: want the namespace of a Lease")
	}
	return errors.Join(problems...)
}
