package membership

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
)

// When a server publishes its steps again, and how long it waits after an error.
const (
	stepsAgain      = 10 * time.Minute
	stepsFirstRetry = 100 * time.Millisecond
	stepsWarning    = 10 * time.Second // a retry as late as this is worth a warning
)

// PublishSteps tells the servers that share the datastore what this one has taken of keys that are being
// replaced. A start waits for the first try.
func (p *Part) PublishSteps(ctx context.Context, ready func()) error {
	client, err := kubernetes.NewForConfig(p.Client())
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	for retry := stepsFirstRetry; ; {
		err := panics.Catch(func() error { return p.annotateLease(ctx, client) })
		ready()
		next := stepsAgain
		if err == nil {
			retry = stepsFirstRetry
		} else if ctx.Err() == nil {
			if retry > stepsWarning {
				p.Log.Warnf("cannot tell other servers which keys this one has; trying again: %v", err)
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

// annotateLease writes the steps in replacements of keys to the Lease of this server, which upstream makes when the API server has started.
func (p *Part) annotateLease(ctx context.Context, client kubernetes.Interface) error {
	if p.steps == "" {
		return nil
	}
	name, err := p.Identity()
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{StepsAnnotation: p.steps}}})
	if err != nil {
		return err
	}
	_, err = client.CoordinationV1().Leases(metav1.NamespaceSystem).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// Identity returns the name of this server's Lease, which upstream makes from the host name: machines may have that in common, and each server
// has its own key. The certificates exist. It is empty if no other server can use the datastore.
func (p *Part) Identity() (string, error) {
	if p.Cluster.PrivateStorage {
		return "", nil
	}
	chain, err := certutil.CertsFromFile(certs.File(p.Server.Certs.Dir, certs.KubeletClient))
	if err != nil {
		return "", fmt.Errorf("make this server's identity: %w", err)
	}
	sum := sha256.Sum256(chain[0].RawSubjectPublicKeyInfo)
	return "apiserver-" + hex.EncodeToString(sum[:13]), nil
}

// NodeIssuer returns the annotation that shows which nodes have followed a replacement of authorities; empty if there is none.
func (p *Part) NodeIssuer() (string, error) {
	_, former, err := certs.Signer(p.Server.Certs.Dir, certs.ClientCA)
	if !former {
		return "", err
	}
	return IssuerAnnotation, err
}
