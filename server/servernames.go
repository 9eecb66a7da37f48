package server

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/panics"
	"github.com/karve-k8s/karve/server/controllers/replacements"
)

// When a server publishes its names again, and how long it waits after an error.
const (
	namesAgain      = 10 * time.Minute
	namesFirstRetry = 100 * time.Millisecond
	namesTold       = 10 * time.Second // a retry as late as this is worth a warning
)

// publishNames tells the servers that share the datastore this one's names, for which no kubelet may get
// a certificate. A start waits for the first try.
func (s *controlPlane) publishNames(ctx context.Context, ready func()) error {
	client, err := kubernetes.NewForConfig(s.adminClient())
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	for retry := namesFirstRetry; ; {
		err := panics.Catch(func() error {
			names, err := s.lastingNames()
			if err != nil {
				return err
			}
			return replacements.PublishNames(ctx, client, names)
		})
		ready()
		next := namesAgain
		if err == nil {
			retry = namesFirstRetry
		} else if ctx.Err() == nil {
			if retry > namesTold {
				s.Log.Warnf("cannot tell other servers this one's names, for which no kubelet may get a certificate; trying again: %v", err)
			}
			next, retry = retry, min(2*retry, namesAgain)
		}
		select {
		case <-time.After(next):
		case <-ctx.Done():
			return nil
		}
	}
}

// lastingNames returns those of names that stay this server's: not the addresses of its interfaces, which
// may be another machine's one day. Those are endpoints of the Service kubernetes, while the server runs.
func (s *controlPlane) lastingNames() ([]string, error) {
	all, err := s.names()
	if err != nil {
		return nil, err
	}
	local, err := certs.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(name string) bool {
		ip := net.ParseIP(name)
		return ip != nil && slices.ContainsFunc(local, func(a net.Addr) bool {
			n, ok := a.(*net.IPNet)
			return ok && n.IP.Equal(ip)
		})
	}), nil
}
