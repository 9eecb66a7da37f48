// Package ask asks a cluster what a machine that joins it has to know, and trusts no answer before its signature and the
// authorities are checked. It changes nothing.
package ask

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pubkeypin"

	"github.com/karve-k8s/karve/internal/clusterinfo"
)

// Questions are to a server, as a user of its nodes puts them.
type Questions struct {
	// Server is the URL of the API server.
	Server string
	// Token is a bootstrap token.
	Token string
	// CAHashes pin the authority of the server's certificate and that of its clients.
	CAHashes []string
	// Patience is how long the token may be unknown: the controller that signs cluster-info needs a moment after the
	// token was created.
	Patience time.Duration
	// Say takes a line for the user.
	Say func(format string, args ...any)
}

const clusterInfoPath = "/api/v1/namespaces/" + "kube-public" + "/configmaps/" + bootstrapapi.ConfigMapClusterInfo

// DefaultPatience is that of Questions.
const DefaultPatience = 10 * time.Second

// clockTolerance is how much the clocks may differ. Certificates for kubelets begin five minutes
// before they are signed, so a clock that is further behind does not accept them.
const clockTolerance = 4 * time.Minute

// RequestTimeout limits one request.
const RequestTimeout = 20 * time.Second

// Discover finds out which cluster the server has, as kubeadm's token discovery does: it reads the
// ConfigMap cluster-info anonymously, checks its signature with the token and its CA with the
// pinned hashes, and reads it again over a connection that is verified.
//
// It is stricter than kubeadm in one thing: where cluster-info has several CAs, the server's own
// certificate has to come from a pinned one, and one of these has to vouch for the others. Otherwise a person with a stolen
// token, or who may write cluster-info, could add a CA.
func (q Questions) Discover(ctx context.Context) (*Cluster, error) {
	first, err := q.readSigned(ctx)
	if err != nil {
		return nil, err
	}
	ca, err := clusterCA(first)
	if err != nil {
		return nil, err
	}
	pinned, err := pinnedCAs(ca, q.CAHashes)
	if err != nil {
		return nil, err
	}
	config := ClientConfig(q.Server, pinned)
	anonymous, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	defer anonymous.CloseIdleConnections()
	second, _, err := readClusterInfo(ctx, anonymous, q.Server)
	if err != nil {
		return nil, err
	}
	if first != second.Data[bootstrapapi.KubeConfigKey] {
		return nil, fmt.Errorf("%s: cluster-info is another one over a verified connection: somebody between this machine and the server changes it, or it has just changed. Try again, and look into this if it happens again", q.Server)
	}
	if ca, _, err = q.Vouched(ca, pinned); err != nil {
		return nil, err
	}
	config.BearerToken = q.Token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Server: q.Server, CA: ca, Client: client}
	return c, c.read(ctx)
}

// ClientConfig is for requests without credentials to a server whose certificate ca has signed.
func ClientConfig(server string, ca []byte) *rest.Config {
	// Several requests of one join are no burst that a client should slow down.
	return &rest.Config{Host: server, Timeout: RequestTimeout, TLSClientConfig: rest.TLSClientConfig{CAData: ca}, UserAgent: "karve-node", QPS: -1}
}

// readSigned returns the kubeconfig of cluster-info, whose signature is checked.
func (q Questions) readSigned(ctx context.Context) (string, error) {
	id, secret, _ := strings.Cut(q.Token, ".")
	// The connection is not verified yet: the signature and the hash are what is.
	client := &http.Client{
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, //nolint:gosec
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       RequestTimeout,
	}
	defer client.CloseIdleConnections()
	for deadline := time.Now().Add(q.Patience); ; {
		info, date, err := readClusterInfo(ctx, client, q.Server)
		if err != nil {
			return "", err
		}
		if err := checkClock(time.Now(), date); err != nil {
			return "", err
		}
		text := info.Data[bootstrapapi.KubeConfigKey]
		signature, ok := info.Data[bootstrapapi.JWSSignatureKeyPrefix+id]
		switch {
		case text == "":
			return "", fmt.Errorf("%s: the ConfigMap cluster-info in kube-public has no kubeconfig: upgrade the server with install.sh", q.Server)
		case ok && jws.DetachedTokenIsValid(signature, text, id, secret):
			return text, nil
		case ok:
			return "", fmt.Errorf("--token: %s knows a token %s, but with another secret: copy the whole token, or make a new one with `karve token create --print-install-command` on the server", q.Server, id)
		case time.Now().After(deadline):
			return "", fmt.Errorf("--token: %s does not know the token %s; it has expired, was deleted, or is another cluster's: make a new one with `karve token create --print-install-command` on the server", q.Server, id)
		}
		if err := pause(ctx, time.Second); err != nil {
			return "", err
		}
	}
}

// readClusterInfo also returns the server's time, which is zero if it does not say it.
func readClusterInfo(ctx context.Context, client *http.Client, server string) (*corev1.ConfigMap, time.Time, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+clusterInfoPath, nil)
	if err != nil {
		return nil, time.Time{}, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, time.Time{}, Explain(server, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return nil, time.Time{}, Explain(server, err)
	}
	date, _ := http.ParseTime(response.Header.Get("Date"))
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, date, fmt.Errorf("--server %s: it does not show cluster-info to anonymous clients (%s): upgrade the server with install.sh, and do not turn anonymous requests off with --anonymous-auth=false", server, response.Status)
	case http.StatusNotFound:
		return nil, date, fmt.Errorf("--server %s: it has no ConfigMap cluster-info in kube-public: upgrade the server with install.sh, or correct the address if it is not the API server's", server)
	default:
		return nil, date, fmt.Errorf("--server %s: it answers %s: check the address, and the server with `karve status`", server, response.Status)
	}
	info := &corev1.ConfigMap{}
	if err := json.Unmarshal(body, info); err != nil || info.Name != bootstrapapi.ConfigMapClusterInfo {
		return nil, date, fmt.Errorf("--server %s: it is not a Kubernetes API server: correct the address", server)
	}
	return info, date, nil
}

// checkClock compares this machine's time with the server's, which has whole seconds.
func checkClock(here, there time.Time) error {
	if there.IsZero() {
		return nil
	}
	off, direction := here.Sub(there), "ahead of"
	if off < 0 {
		off, direction = -off, "behind"
	}
	if off <= clockTolerance {
		return nil
	}
	return fmt.Errorf("this machine's clock is %s %s the server's (%s here, %s there): certificates would be refused. Set it, for example with `timedatectl set-ntp true`, and join again",
		off.Round(time.Second), direction, here.UTC().Format(time.DateTime), there.UTC().Format(time.DateTime))
}

// clusterCA is the CA bundle in the kubeconfig of cluster-info.
func clusterCA(text string) ([]byte, error) {
	_, cluster, err := clusterinfo.Parse(text)
	if err == nil {
		if len(cluster.CertificateAuthorityData) > 0 {
			return cluster.CertificateAuthorityData, nil
		}
		err = errors.New("no certificate-authority-data")
	}
	return nil, fmt.Errorf("the kubeconfig in the ConfigMap cluster-info cannot be used: %w: delete the ConfigMap and restart the server without --no-kubeadm-objects, and it creates it", err)
}

// pinnedCAs are those certificates of a bundle that a hash is of.
func pinnedCAs(bundle []byte, hashes []string) ([]byte, error) {
	all, err := cert.ParseCertsPEM(bundle)
	if err != nil {
		return nil, fmt.Errorf("the CA in the ConfigMap cluster-info cannot be read: %w: delete the ConfigMap and restart the server without --no-kubeadm-objects, and it creates it", err)
	}
	var found bytes.Buffer
	var offered []string
	for _, c := range all {
		hash := pubkeypin.Hash(c)
		offered = append(offered, hash)
		if slices.ContainsFunc(hashes, func(h string) bool { return strings.EqualFold(h, hash) }) {
			encoded, err := cert.EncodeCertificates(c)
			if err != nil {
				return nil, err
			}
			found.Write(encoded)
		}
	}
	if found.Len() == 0 {
		return nil, fmt.Errorf("--ca-hash %s: the server's CA has another hash (%s). If the server is the right one, take the hash that `karve token create --print-install-command` prints there; otherwise somebody pretends to be it",
			strings.Join(hashes, ", "), strings.Join(offered, ", "))
	}
	return found.Bytes(), nil
}

// Explain says what to do about a request that got no answer.
func Explain(server string, err error) error {
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		err = wrapped.Err // the address is in our own text
	}
	var (
		name    x509.HostnameError
		unknown x509.UnknownAuthorityError
		invalid x509.CertificateInvalidError
	)
	switch {
	case errors.Is(err, context.Canceled):
		return errors.New("interrupted")
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("--server %s: it does not accept the credentials: a token has expired or was deleted (make a new one with `karve token create --print-install-command` on the server), or the certificate of a node has expired or its authority was replaced ("+Renewal+")", server)
	case errors.As(err, &name):
		return fmt.Errorf("--server %s: the server's certificate is not valid for that name (%w): use a name that it has, or start the server with --tls-san %s", server, err, name.Host)
	case errors.As(err, &unknown):
		return fmt.Errorf("--ca-hash: the CA with that hash did not sign the certificate of %s: take the hash that `karve token create --print-install-command` prints", server)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("--server %s: %w: check the clocks of both machines", server, err)
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fmt.Errorf("--server %s: it speaks http, not https: give the address of the secure port", server)
	}
	return fmt.Errorf("--server %s: no answer (%w): check the address, that the server runs, and that a firewall lets this machine reach it", server, err)
}

// Renewal is the remedy if the cluster does not accept the kubelet's certificate.
const Renewal = "`karve token create --print-install-command` on the server prints a line which, run here, gets it another one, and Pods keep running"

// NotAccepted tells whether a server and this node no longer know each other: the certificate has expired, or its authority was dropped.
func NotAccepted(err error) bool {
	unknown := x509.UnknownAuthorityError{}
	return apierrors.IsUnauthorized(err) || errors.As(err, &unknown)
}

// pause waits, unless the context ends first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return errors.New("interrupted")
	case <-time.After(d):
		return nil
	}
}
