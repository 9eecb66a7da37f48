package keys

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	bootstraptoken "k8s.io/kubernetes/cmd/kubeadm/app/apis/bootstraptoken/v1"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pubkeypin"

	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/internal/clusterinfo"
	"github.com/karve-k8s/karve/internal/shell"
)

// releases is where releases are, unless KARVE_DOWNLOAD_URL names a mirror.
const releases = "https://github.com/karve-k8s/karve/releases"

// target is what a machine needs to know of the cluster that it joins.
type target struct {
	address string   // HOST:PORT
	hashes  []string // of the public keys of the authorities that sign the API server's certificate
	clients []string // of those of its clients, which nodes trust for its requests; kubeadm takes them unseen
}

// findTarget reads the address in cluster-info, which every machine can reach, and computes the hashes of
// the authorities that this client trusts.
func findTarget(ctx context.Context, client kubernetes.Interface, config *rest.Config) (*target, error) {
	advertised, err := servers.ReadAdvertised(ctx, client)
	if err != nil {
		return nil, err
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, err
	}
	trusted := config.CAData
	if len(trusted) == 0 { // a client of the insecure port
		trusted = advertised.CA
	}
	authorities, err := certutil.ParseCertsPEM(trusted)
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig has no certificate-authority-data whose hash a machine could check: %w", err)
	}
	t := &target{address: advertised.Address}
	t.hashes = hashes(authorities)
	pins := pubkeypin.NewSet()
	if err := pins.Allow(t.hashes...); err != nil {
		return nil, err
	}
	if err := checkPins(pins, advertised.CA); err != nil {
		return nil, err
	}
	clients, err := clientAuthorities(ctx, client, advertised.CA)
	t.clients = hashes(clients)
	return t, err
}

// hashes has one of each key: the bridge to a new authority has its key.
func hashes(authorities []*x509.Certificate) (all []string) {
	for _, a := range authorities {
		if hash := pubkeypin.Hash(a); !slices.Contains(all, hash) {
			all = append(all, hash)
		}
	}
	return all
}

// publishPatience is how long after its start a server may take to publish the authorities of its clients.
const publishPatience = 5 * time.Second

// clientAuthorities returns those of cluster-info that the API server accepts clients of. Only the server writes
// that ConfigMap in kube-system; cluster-info may have authorities of whoever may write it, and nodes trust none without a hash.
func clientAuthorities(ctx context.Context, client kubernetes.Interface, advertised []byte) (clients []*x509.Certificate, err error) {
	const name = "extension-apiserver-authentication"
	var accepted []*x509.Certificate
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, publishPatience, true, func(ctx context.Context) (bool, error) {
		published, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		accepted, err = certutil.ParseCertsPEM([]byte(published.Data["client-ca-file"]))
		return err == nil, nil
	})
	if err != nil {
		return nil, fmt.Errorf("the ConfigMap %s in kube-system, which the server writes at its start, has no authorities of clients, whose hashes a node needs: %w", name, err)
	}
	listed, err := certutil.ParseCertsPEM(advertised)
	return slices.DeleteFunc(listed, func(c *x509.Certificate) bool { return !slices.ContainsFunc(accepted, c.Equal) }), err
}

// checkPins makes sure that a machine, which gets the authorities from cluster-info, finds one of pins
// among them.
func checkPins(pins *pubkeypin.Set, advertised []byte) error {
	var listed []*x509.Certificate
	if len(advertised) > 0 {
		listed, _ = certutil.ParseCertsPEM(advertised)
	}
	if len(listed) == 0 {
		return fmt.Errorf("%s has no certificate-authority-data: restart the server, which writes it", clusterinfo.Name)
	}
	if pins.CheckAny(listed) != nil {
		return errors.New(clusterinfo.Name + " has another authority than the one that signs the server's certificate: restart the server, which corrects it")
	}
	return nil
}

// kubeadm is the command with which kubeadm joins a machine.
func (t *target) kubeadm(token bootstraptoken.BootstrapTokenString) string {
	line := "kubeadm join " + t.address + " --token " + token.String()
	for _, h := range t.hashes {
		line += " --discovery-token-ca-cert-hash " + h
	}
	return line
}

// install is the command with which Karve's installer makes a machine a node. It needs the hashes of all
// authorities: any of them may have signed the server's certificate, and a node takes none from cluster-info for which nothing vouches. The token is not among the
// arguments, which other users can see. The machine gets this release, from the mirror if there is one. Only
// a release can be named: release is empty if this program is another build.
func (t *target) install(token bootstraptoken.BootstrapTokenString, mirror, release string) string {
	from, environment := mirror, ""
	switch {
	case mirror != "":
		environment = "KARVE_DOWNLOAD_URL=" + shell.Quoted(mirror) + " "
	case release != "":
		from = releases + "/download/" + strings.ReplaceAll(release, "+", "%2B")
	default:
		from = releases + "/latest/download"
	}
	if release != "" {
		environment += "KARVE_VERSION=" + release + " "
	}
	return fmt.Sprintf("curl -fsSLo karve-install.sh %s && %sKARVE_TOKEN=%s sh karve-install.sh node --server https://%s --ca-hash %s",
		shell.Quoted(strings.TrimSuffix(from, "/")+"/install.sh"), environment, token, t.address, strings.Join(slices.Concat(t.hashes, t.clients), " --ca-hash "))
}
