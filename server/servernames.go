package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/panics"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/certificates"
	"github.com/karve-k8s/karve/server/controllers/replacements"
	"github.com/karve-k8s/karve/server/membership"
)

// When a server publishes its names again, and how long it waits after an error.
const (
	namesAgain      = 10 * time.Minute
	namesFirstRetry = 100 * time.Millisecond
	namesTold       = 10 * time.Second // a retry as late as this is worth a warning
)

// publishNames tells the servers that share the datastore this one's names, for which no kubelet may get
// a certificate, and what it has taken of keys that are being replaced. A start waits for the first try.
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
			return errors.Join(replacements.PublishNames(ctx, client, names), s.publishSteps(ctx, client))
		})
		ready()
		next := namesAgain
		if err == nil {
			retry = namesFirstRetry
		} else if ctx.Err() == nil {
			if retry > namesTold {
				s.Log.Warnf("cannot tell other servers this one's names, for which no kubelet may get a certificate, and which keys it has; trying again: %v", err)
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

// publishSteps writes the steps in replacements of keys to the Lease of this server, which upstream makes when the API server has started.
func (s *controlPlane) publishSteps(ctx context.Context, client kubernetes.Interface) error {
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

// names returns the names and addresses at which clients may look for this server: those of its
// certificates, those that the user has configured, and those of this machine. A serving
// certificate gets new addresses while the server runs, and a user's own may lack some.
func (s *controlPlane) names() ([]string, error) {
	config := s.certificatesConfig()
	all := slices.Clone(config.SANs)
	addresses := slices.Concat(config.Addresses, config.ServiceIPs)
	files := []string{s.certificates.Store().CertFile(certs.Serving)}
	if s.TLSCertFile != "" {
		files = append(files, s.TLSCertFile)
	}
	sni, err := apiserver.SNICertificates(s.APIServerArgs)
	if err != nil {
		return nil, err
	}
	for _, pair := range sni {
		if len(pair.Names) > 0 { // the server presents the certificate for these names only
			all = append(all, pair.Names...)
		} else {
			chain, err := certutil.CertsFromFile(pair.CertFile)
			if err != nil {
				return nil, err
			}
			if name := chain[0].Subject.CommonName; net.ParseIP(name) == nil { // the server presents it for that too
				all = append(all, name)
			}
			files = append(files, pair.CertFile)
		}
	}
	for _, file := range files {
		chain, err := certutil.CertsFromFile(file)
		if err != nil {
			return nil, err
		}
		all = append(all, chain[0].DNSNames...)
		addresses = append(addresses, chain[0].IPAddresses...)
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	local, err := certs.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	for _, a := range local {
		if n, ok := a.(*net.IPNet); ok {
			addresses = append(addresses, n.IP)
		}
	}
	all = append(all, host)
	for _, ip := range addresses {
		all = append(all, ip.String())
	}
	return all, nil
}
