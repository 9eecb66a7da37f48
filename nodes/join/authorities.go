package join

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"

	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/nodes/join/ask"
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
	offered, err := ask.Authorities(ctx, r.Server, []byte(ca))
	if err != nil {
		return err
	}
	bundle, trusted, err := o.questions().Vouched(offered, []byte(ca))
	if err != nil {
		return err
	}
	i, err := m.identity()
	if err != nil {
		return err
	}
	same := string(bytes.TrimSpace(bundle)) == ca
	if same && !ask.Replaced(i.leaf, trusted) {
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
	config := ask.ClientConfig(server, ca)
	config.CertData, config.KeyData = i.pem, i.pem
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	if _, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("the new certificate of the node %s: %w", node, ask.Explain(server, err))
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

// joinAgain is Join on a machine that is the node already. Where the cluster does not accept the kubelet's certificate, a token gets it
// another one. Another address of the server is taken if the Node there is this machine's.
func (m *Machine) joinAgain(ctx context.Context, r *record, o Options) error {
	client, err := m.ownClient(o.Server)
	if err == nil {
		_, err = client.CoreV1().Nodes().Get(ctx, r.Node, metav1.GetOptions{})
	}
	switch {
	case ask.NotAccepted(err):
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
	c, err := o.questions().Discover(ctx)
	if err != nil {
		return err
	}
	if err := c.Free(ctx, r.Node, m.machineID(), m.hasAddress); err != nil {
		return err
	}
	if o.Server != r.Server {
		if _, err := c.Client.CoreV1().Nodes().Get(ctx, r.Node, metav1.GetOptions{}); err != nil {
			return already(r)
		}
	}
	if err := i.request(ctx, c.Client, r.Node); err != nil {
		return err
	}
	if client, err = m.adopt(ctx, r.Node, o.Server, i, c.CA); err != nil {
		return err
	}
	if err := m.restartKubelet(ctx, client, r.Node, r.Version, o.Timeout); err != nil {
		return fmt.Errorf("the kubelet has a new certificate, and was not Ready within %s (%w): try again. %s", o.Timeout, err, m.logHint(context.WithoutCancel(ctx)))
	}
	if err := atomicfile.Write(m.path(caFile), c.CA, 0o644); err != nil {
		return err
	}
	r.Server = o.Server
	o.Say("the node %s has a new certificate, and its Pods are those that it had", r.Node)
	return m.writeRecord(r)
}

func already(r *record) error {
	return fmt.Errorf("this machine is already the node %s of %s: `karve node upgrade` upgrades its kubelet, with --server if that has another address now, and `karve node remove` removes it", r.Node, r.Server)
}
