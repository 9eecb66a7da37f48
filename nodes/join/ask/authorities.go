package ask

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"

	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pubkeypin"

	"github.com/karve-k8s/karve/internal/quote"
)

// Authorities reads those of cluster-info, over a connection that ca verifies.
func Authorities(ctx context.Context, server string, ca []byte) ([]byte, error) {
	client, err := rest.HTTPClientFor(ClientConfig(server, ca))
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	info, _, err := readClusterInfo(ctx, client, server)
	if err != nil {
		return nil, err
	}
	return clusterCA(info.Data[bootstrapapi.KubeConfigKey])
}

// Vouched returns those authorities of cluster-info that are among own, or for which one of own vouches: by its signature, or by that
// on a bridge, which has the authority's name and key. Others may write cluster-info than may make an authority, so it
// says which it leaves out.
func (q Questions) Vouched(offered, own []byte) (bundle []byte, trusted []*x509.Certificate, err error) {
	left, err := certutil.ParseCertsPEM(offered)
	if err != nil {
		return nil, nil, fmt.Errorf("the authorities in the ConfigMap cluster-info cannot be read: %w", err)
	}
	known, err := certutil.ParseCertsPEM(own)
	if err != nil {
		return nil, nil, fmt.Errorf("the authorities that this machine knows cannot be read: %w", err)
	}
	accepted := map[*x509.Certificate]bool{}
	for more := true; more; {
		more = false
		for _, c := range left {
			if !accepted[c] && c.IsCA && slices.ContainsFunc(known, func(k *x509.Certificate) bool { return vouches(k, c) }) {
				accepted[c], more = true, true
				known = append(known, c)
			}
		}
	}
	var ignored []string
	for _, c := range left {
		if accepted[c] {
			trusted = append(trusted, c)
		} else {
			ignored = append(ignored, pubkeypin.Hash(c))
		}
	}
	if len(ignored) > 0 {
		q.Say("the ConfigMap cluster-info in kube-public names authorities for which none vouches that this machine knows: it does not trust %d of them (%s). If they are the cluster's, join this machine again with the line that `karve token create --print-install-command` prints",
			len(ignored), quote.First(ignored, ", "))
	}
	if len(trusted) == 0 {
		return nil, nil, errors.New("the ConfigMap cluster-info in kube-public has none of the authorities that this machine knows: join it again with the line that `karve token create --print-install-command` prints on the server")
	}
	bundle, err = certutil.EncodeCertificates(trusted...)
	return bundle, trusted, err
}

// vouches reports whether c is a, has a's name and key, or was signed by a.
func vouches(a, c *x509.Certificate) bool {
	key, ok := a.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return ok && key.Equal(c.PublicKey) && bytes.Equal(a.RawSubject, c.RawSubject) ||
		a.IsCA && bytes.Equal(a.RawSubject, c.RawIssuer) && c.CheckSignatureFrom(a) == nil
}

// Replaced tells whether the authority that signed a certificate vouches for another one.
func Replaced(leaf *x509.Certificate, authorities []*x509.Certificate) bool {
	return slices.ContainsFunc(authorities, func(c *x509.Certificate) bool {
		return bytes.Equal(c.RawIssuer, leaf.RawIssuer) && !bytes.Equal(c.RawSubject, c.RawIssuer)
	})
}
