package join

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pubkeypin"

	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/quote"
)

// A kubelet reads the authorities of its server when it starts, and asks for another certificate only near the end of the one that
// it has. So when a cluster replaces its authorities, or no longer accepts the certificate, this program gives the kubelet new
// ones, and restarts it. Pods keep running.

// signingPatience is how long the cluster may take to sign a certificate.
const signingPatience = time.Minute

// takeAuthorities follows a replacement of the cluster's authorities. The file caFile is the last that changes: what was
// interrupted before is done again.
func (m *Machine) takeAuthorities(ctx context.Context, r *record, o Options) error {
	ca := m.read(caFile)
	offered, err := readAuthorities(ctx, r.Server, []byte(ca))
	if err != nil {
		return err
	}
	bundle, trusted, err := vouched(offered, []byte(ca), o)
	if err != nil {
		return err
	}
	i, err := m.identity()
	if err != nil {
		return err
	}
	same := string(bytes.TrimSpace(bundle)) == ca
	if same && !replaced(i.leaf, trusted) {
		return nil
	}
	client, err := m.ownClient("")
	if err != nil {
		return err
	}
	if err := i.request(ctx, client, r.Node); err != nil {
		return err
	}
	if same && bytes.Equal(i.leaf.RawIssuer, i.before.RawIssuer) {
		return nil // the new authority does not sign yet
	}
	if _, err := m.adopt(ctx, r.Node, r.Server, i, bundle); err != nil {
		return err
	}
	// The restart also stops the service of Follow, which ends ctx. What comes next is done nevertheless.
	if err := m.restart(context.WithoutCancel(ctx), "karve-node"); err != nil {
		return err
	}
	if err := atomicfile.Write(m.path(caFile), bundle, 0o644); err != nil {
		return err
	}
	o.Say("the kubelet trusts the cluster's present authorities now, and has a certificate of %s", i.leaf.Issuer.CommonName)
	return nil
}

// readAuthorities reads those of cluster-info, over a connection that ca verifies.
func readAuthorities(ctx context.Context, server string, ca []byte) ([]byte, error) {
	client, err := rest.HTTPClientFor(clientConfig(server, ca))
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

// vouched returns those authorities of cluster-info that are among own, or for which one of own vouches: by its signature, or by that
// on a bridge, which has the authority's name and key. Others may write cluster-info than may make an authority, so it
// says which it leaves out.
func vouched(offered, own []byte, o Options) (bundle []byte, trusted []*x509.Certificate, err error) {
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
		o.Say("the ConfigMap cluster-info in kube-public names authorities for which none vouches that this machine knows: it does not trust %d of them (%s). If they are the cluster's, join this machine again with the line that `karve token create --print-install-command` prints",
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

// replaced tells whether the authority that signed a certificate vouches for another one.
func replaced(leaf *x509.Certificate, authorities []*x509.Certificate) bool {
	return slices.ContainsFunc(authorities, func(c *x509.Certificate) bool {
		return bytes.Equal(c.RawIssuer, leaf.RawIssuer) && !bytes.Equal(c.RawSubject, c.RawIssuer)
	})
}

// identity is the kubelet's certificate.
type identity struct {
	config *clientcmdapi.Config // of the kubelet
	file   string               // where the certificate and its key are
	pem    []byte
	// leaf is what is in pem, and before was in it before request.
	leaf, before *x509.Certificate
}

// identity reads the kubelet's certificate, which need not be valid.
func (m *Machine) identity() (*identity, error) {
	config, err := clientcmd.LoadFromFile(m.path(kubeconfigFile))
	if err != nil {
		return nil, err
	}
	i := &identity{config: config}
	for _, auth := range config.AuthInfos {
		// The kubelet keeps a link to the newest one.
		if i.file, err = filepath.EvalSymlinks(auth.ClientCertificate); err != nil {
			return nil, fmt.Errorf("the kubelet's certificate cannot be read: %w", err)
		}
	}
	all, err := certutil.CertsFromFile(i.file)
	if err != nil {
		return nil, fmt.Errorf("the kubelet's certificate: %w", err)
	}
	i.leaf = all[0]
	return i, nil
}

// request gets another certificate for a node, with a new key. The client has the credentials of the node, or a token.
func (i *identity) request(ctx context.Context, client kubernetes.Interface, node string) error {
	key, text, err := makeRequest(node)
	if err != nil {
		return err
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(key)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, signingPatience)
	defer cancel()
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	name, uid, err := csr.RequestCertificateWithContext(ctx, client, text, "", certificatesv1.KubeAPIServerClientKubeletSignerName, nil, usages, parsed)
	if err != nil {
		return fmt.Errorf("ask for a certificate of the node %s: %w", node, err)
	}
	signed, err := csr.WaitForCertificate(ctx, client, name, uid)
	if err != nil {
		return fmt.Errorf("the cluster has not signed the certificate of the node %s (%w): if `karve kubectl get certificatesigningrequest %s` on the server shows it as pending, approve it, and try again", node, err, name)
	}
	all, err := certutil.ParseCertsPEM(signed)
	if err != nil {
		return err
	}
	i.pem, i.before, i.leaf = slices.Concat(signed, key), i.leaf, all[0]
	return nil
}

// makeRequest makes a key, and the request for a certificate of a node: both PEM.
func makeRequest(node string) (key, request []byte, err error) {
	if key, err = keyutil.MakeEllipticPrivateKeyPEM(); err != nil {
		return nil, nil, err
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(key)
	if err != nil {
		return nil, nil, err
	}
	request, err = certutil.MakeCSR(parsed, &pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}, nil, nil)
	return key, request, err
}

// adopt gives the kubelet what request got, and the authorities ca, for its next start. Before that, the server has to accept it.
func (m *Machine) adopt(ctx context.Context, node, server string, i *identity, ca []byte) (kubernetes.Interface, error) {
	config := clientConfig(server, ca)
	config.CertData, config.KeyData = i.pem, i.pem
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	if _, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("the new certificate of the node %s: %w", node, explainConnection(server, err))
	}
	for _, c := range i.config.Clusters {
		c.Server, c.CertificateAuthority, c.CertificateAuthorityData = server, "", ca
	}
	text, err := clientcmd.Write(*i.config)
	if err != nil {
		return nil, err
	}
	return client, atomicfile.Writer{}.Write(
		atomicfile.File{Path: i.file, Data: i.pem, Mode: 0o600},
		atomicfile.File{Path: m.path(kubeconfigFile), Data: text, Mode: 0o600})
}

// notAccepted tells whether a server and this node no longer know each other: the certificate has expired, or its authority was dropped.
func notAccepted(err error) bool {
	unknown := x509.UnknownAuthorityError{}
	return apierrors.IsUnauthorized(err) || errors.As(err, &unknown)
}

// joinAgain is Join on a machine that is the node already. Where the cluster does not accept the kubelet's certificate, a token gets it
// another one. Another address of the server is taken if the Node there is this machine's.
func (m *Machine) joinAgain(ctx context.Context, r *record, o Options) error {
	client, err := m.ownClient(o.Server)
	if err == nil {
		_, err = client.CoreV1().Nodes().Get(ctx, r.Node, metav1.GetOptions{})
	}
	switch {
	case notAccepted(err):
	case o.Server != r.Server:
		return already(r)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("this machine was the node %s of %s, but %s", r.Node, r.Server, gone(r, err))
	default:
		o.Say("this machine is already the node %s of %s: nothing is changed", r.Node, r.Server)
		return nil
	}
	o.Say("%s does not accept the certificate of the node %s any more: asking for another one", o.Server, r.Node)
	i, err := m.identity()
	if err != nil {
		return err
	}
	c, err := discover(ctx, o)
	if err != nil {
		return err
	}
	if err := c.free(ctx, m, r.Node); err != nil {
		return err
	}
	if o.Server != r.Server {
		if _, err := c.client.CoreV1().Nodes().Get(ctx, r.Node, metav1.GetOptions{}); err != nil {
			return already(r)
		}
	}
	if err := i.request(ctx, c.client, r.Node); err != nil {
		return err
	}
	if client, err = m.adopt(ctx, r.Node, o.Server, i, c.ca); err != nil {
		return err
	}
	if err := m.restartKubelet(ctx, client, r.Node, r.Version, o.Timeout); err != nil {
		return fmt.Errorf("the kubelet has a new certificate, and was not Ready within %s (%w): try again. %s", o.Timeout, err, m.logHint(context.WithoutCancel(ctx)))
	}
	if err := atomicfile.Write(m.path(caFile), c.ca, 0o644); err != nil {
		return err
	}
	r.Server = o.Server
	o.Say("the node %s has a new certificate, and its Pods are those that it had", r.Node)
	return m.writeRecord(r)
}

func already(r *record) error {
	return fmt.Errorf("this machine is already the node %s of %s: `karve node upgrade` upgrades its kubelet, with --server if that has another address now, and `karve node remove` removes it", r.Node, r.Server)
}
