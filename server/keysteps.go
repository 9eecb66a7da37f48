package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/panics"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/certificates"
	"github.com/karve-k8s/karve/server/membership"
)

// When a server publishes its steps again, and how long it waits after an error.
const (
	stepsAgain      = 10 * time.Minute
	stepsFirstRetry = 100 * time.Millisecond
	stepsWarning    = 10 * time.Second // a retry as late as this is worth a warning
)

// publishSteps tells the servers that share the datastore what this one has taken of keys that are being
// replaced. A start waits for the first try.
func (s *controlPlane) publishSteps(ctx context.Context, ready func()) error {
	client, err := kubernetes.NewForConfig(s.adminClient())
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	for retry := stepsFirstRetry; ; {
		err := panics.Catch(func() error { return s.annotateLease(ctx, client) })
		ready()
		next := stepsAgain
		if err == nil {
			retry = stepsFirstRetry
		} else if ctx.Err() == nil {
			if retry > stepsWarning {
				s.Log.Warnf("cannot tell other servers which keys this one has; trying again: %v", err)
			}
			next, retry = retry, min(2*retry, stepsAgain)
		}
		select {
		case <-time.After(next):
		case <-ctx.Done():
			return nil
		}
	}
}

// followKeys lets servers and commands know who has followed a replacement of keys: this server, by a Lease of its own, and nodes.
func (s *controlPlane) followKeys(c *apiserver.Config) (err error) {
	if !c.SingleServer {
		if c.Identity, err = s.leaseName(); err != nil {
			return err
		}
	}
	_, former, err := certs.Signer(certificates.Dir(s.DataDir), certs.ClientCA)
	if former {
		c.NodeIssuer = membership.IssuerAnnotation
	}
	return err
}

// leaseName returns the name of this server's Lease, which upstream makes from the host name: machines may have that in common, and each server
// has its own key.
func (s *controlPlane) leaseName() (string, error) {
	chain, err := certutil.CertsFromFile(s.certificates.Store().CertFile(certs.KubeletClient))
	if err != nil {
		return "", fmt.Errorf("make this server's identity: %w", err)
	}
	sum := sha256.Sum256(chain[0].RawSubjectPublicKeyInfo)
	return "apiserver-" + hex.EncodeToString(sum[:13]), nil
}

// annotateLease writes the steps in replacements of keys to the Lease of this server, which upstream makes when the API server has started.
func (s *controlPlane) annotateLease(ctx context.Context, client kubernetes.Interface) error {
	if s.steps == "" {
		return nil
	}
	name, err := s.leaseName()
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{membership.StepsAnnotation: s.steps}}})
	if err != nil {
		return err
	}
	_, err = client.CoordinationV1().Leases(metav1.NamespaceSystem).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
