package keys

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraptoken "k8s.io/kubernetes/cmd/kubeadm/app/apis/bootstraptoken/v1"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pubkeypin"
)

const someToken = "abcdef.fedcba9876543210"

// The usages and groups are kubeadm's, and the token is a random one.
func TestParseHasKubeadmsDefaults(t *testing.T) {
	got, err := newToken(nil, time.Hour, "")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.Usages, bootstraptoken.DefaultTokenUsages) || !slices.Equal(got.Groups, bootstraptoken.DefaultTokenGroups) || got.TTL.Duration != time.Hour {
		t.Errorf("got %+v, want kubeadm's", got)
	}
	other, err := newToken(nil, time.Hour, "")
	if err != nil || other.Token.String() == got.Token.String() {
		t.Errorf("two tokens: got %v twice (%v), want random ones", got.Token.ID, err)
	}
}

func TestParse(t *testing.T) {
	const form = "TOKEN has the wrong form"
	for _, tc := range []struct {
		name string
		args []string
		ttl  time.Duration
		want []string // words of the error, one for each problem; none: it is fine
	}{
		{"a token", []string{someToken}, time.Hour, nil},
		{"capitals", []string{"ABCDEF.fedcba9876543210"}, time.Hour, []string{form}},
		{"too long", []string{someToken + "0"}, time.Hour, []string{form}},
		{"a line break", []string{someToken + "\n"}, time.Hour, []string{form}},
		{"empty", []string{""}, time.Hour, []string{form}},
		{"for ever", nil, 0, nil},
		{"negative", nil, -time.Second, []string{"--ttl -1s"}},
		{"less than the expiration can say", []string{"x"}, time.Millisecond, []string{form, "--ttl 1ms"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := newToken(tc.args, tc.ttl, "")
			var lines []string
			if err != nil {
				lines = strings.Split(err.Error(), "\n")
			}
			if !slices.EqualFunc(lines, tc.want, strings.HasPrefix) || strings.Contains(fmt.Sprint(err), "fedcba98") {
				t.Errorf("got %q, want %q, and no secret", lines, tc.want)
			}
		})
	}
}

// A Secret that is no token is reported without what is secret in it, and does not hide the others.
func TestReadReportsWhatIsNoToken(t *testing.T) {
	secret := func(name string, data map[string]string) *corev1.Secret {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-system"}, Type: bootstrapapi.SecretTypeBootstrapToken, Data: map[string][]byte{}}
		for k, v := range data {
			s.Data[k] = []byte(v)
		}
		return s
	}
	client := fake.NewClientset(
		secret("bootstrap-token-aaaaaa", map[string]string{"token-id": "aaaaaa", "token-secret": "fedcba9876543210", "usage-bootstrap-signing": "true"}),
		secret("bootstrap-token-bbbbbb", map[string]string{"token-id": "bbbbbb", "token-secret": "TOPSECRET"}),
		secret("bootstrap-token-cccccc", map[string]string{"token-id": "dddddd", "token-secret": "topsecret0123456"}),
		secret("bootstrap-token-eeeeee", map[string]string{"token-secret": "topsecret0123456"}),
		secret("bootstrap-token-ffffff", map[string]string{"token-id": "ffffff", "token-secret": "topsecret0123456", "expiration": "tomorrow"}),
	)
	var problems bytes.Buffer
	tokens, err := readTokens(t.Context(), client, &problems)
	if err != nil {
		t.Fatal(err)
	}
	if len(tokens) != 1 || tokens[0].Token.ID != "aaaaaa" {
		t.Errorf("got %+v, want the one token", tokens)
	}
	for _, id := range []string{"bbbbbb", "cccccc", "eeeeee", "ffffff"} {
		if want := "bootstrap-token-" + id + " is not a usable token"; !strings.Contains(problems.String(), want) {
			t.Errorf("got %s, want %q in it", problems.String(), want)
		}
	}
	if strings.Contains(strings.ToLower(problems.String()), "topsecret") {
		t.Errorf("a secret is in %s", problems.String())
	}
}

// authority is a certificate in PEM.
func authority(t *testing.T) []byte {
	t.Helper()
	cert, _, err := certutil.GenerateSelfSignedCertKey("authority.example", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(cert)
	return pem.EncodeToMemory(block)
}

func TestFind(t *testing.T) {
	mine, others := authority(t), authority(t)
	parsed, err := certutil.ParseCertsPEM(mine)
	if err != nil {
		t.Fatal(err)
	}
	hash := pubkeypin.Hash(parsed[0])
	clients := authority(t) // others are in cluster-info only, by whoever may write it
	published := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "extension-apiserver-authentication", Namespace: "kube-system"}, Data: map[string]string{"client-ca-file": string(slices.Concat(authority(t), clients))}}
	find := func(ca []byte) (*target, error) {
		text := "apiVersion: v1\nkind: Config\nclusters: [{name: '', cluster: {server: 'https://192.0.2.7:6443'"
		if len(ca) > 0 {
			text += ", certificate-authority-data: " + base64.StdEncoding.EncodeToString(ca)
		}
		client := fake.NewClientset(published, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cluster-info", Namespace: "kube-public"}, Data: map[string]string{"kubeconfig": text + "}}]"}})
		return findTarget(t.Context(), client, &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: mine}})
	}
	for name, ca := range map[string][]byte{"alone": mine, "in a bundle": append(append([]byte{}, others...), mine...)} {
		got, err := find(ca)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		token := bootstraptoken.BootstrapTokenString{ID: "abcdef", Secret: "fedcba9876543210"}
		if got, want := got.kubeadm(token), "kubeadm join 192.0.2.7:6443 --token "+someToken+" --discovery-token-ca-cert-hash "+hash; got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
		const node = " sh karve-install.sh node --server https://192.0.2.7:6443 --ca-hash "
		for _, c := range []struct{ mirror, release, want string }{
			{"", "v1.37.2+karve.3", "curl -fsSLo karve-install.sh https://github.com/karve-k8s/karve/releases/download/v1.37.2%2Bkarve.3/install.sh && KARVE_VERSION=v1.37.2+karve.3 "},
			{"", "", "curl -fsSLo karve-install.sh https://github.com/karve-k8s/karve/releases/latest/download/install.sh && "},
			{"https://mirror.example/k a/", "v1.37.2+karve.3", "curl -fsSLo karve-install.sh 'https://mirror.example/k a/install.sh' && KARVE_DOWNLOAD_URL='https://mirror.example/k a/' KARVE_VERSION=v1.37.2+karve.3 "},
		} {
			if got, want := got.install(token, c.mirror, c.release), c.want+"KARVE_TOKEN="+someToken+node+hash; got != want {
				t.Errorf("%s: got %s, want %s", name, got, want)
			}
		}
	}
	// Either of two authorities may have signed the server's certificate.
	mine = append(append([]byte{}, others...), mine...)
	both, err := find(mine)
	if err != nil {
		t.Fatal(err)
	}
	if got := both.install(bootstraptoken.BootstrapTokenString{}, "", ""); len(both.hashes) != 2 || !strings.HasSuffix(got, " --ca-hash "+both.hashes[0]+" --ca-hash "+hash) {
		t.Errorf("two authorities: got %s, want the hashes of both", got)
	}
	mine = mine[len(others):]
	withClients, err := find(slices.Concat(mine, others, clients))
	if err != nil {
		t.Fatal(err)
	}
	if parsed, err = certutil.ParseCertsPEM(clients); err != nil {
		t.Fatal(err)
	}
	if got := withClients.install(bootstraptoken.BootstrapTokenString{}, "", ""); !strings.HasSuffix(got, " --ca-hash "+hash+" --ca-hash "+pubkeypin.Hash(parsed[0])) {
		t.Errorf("got %s, want the hash of the authority of clients, and no other", got)
	}
	for name, ca := range map[string][]byte{"has no certificate-authority-data": nil, "has another authority": others} {
		if _, err := find(ca); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want that cluster-info %s", err, name)
		}
	}
}

func TestTemporary(t *testing.T) {
	client := fake.NewClientset()
	ctx, interrupt := context.WithCancel(t.Context())
	text, remove, err := TemporaryToken(ctx, client, 15*time.Minute, "for a test")
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := readTokens(ctx, client, io.Discard)
	if err != nil || len(tokens) != 1 {
		t.Fatalf("got %v, %v, want one token", tokens, err)
	}
	if got := tokens[0]; got.Token.String() != text || got.Description != "for a test" || got.Expires == nil || !slices.Equal(got.Usages, []string{"authentication", "signing"}) {
		t.Errorf("got %+v, want %s", got, text)
	}
	interrupt()
	if err := remove(); err != nil {
		t.Error(err)
	}
	if tokens, err := readTokens(t.Context(), client, io.Discard); err != nil || len(tokens) != 0 {
		t.Errorf("got %v, %v, want that it is deleted although the user has interrupted", tokens, err)
	}
}
