package endtoend

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/karve-k8s/karve/internal/eventually"
)

// whoIs is the user that a token authenticates.
func (p *process) whoIs(token string) (authenticationv1.UserInfo, error) {
	config := rest.AnonymousClientConfig(p.config())
	config.BearerToken = token
	review, err := client(p.t, config).AuthenticationV1().SelfSubjectReviews().Create(p.t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	return review.Status.UserInfo, nil
}

// advertise makes cluster-info name a server, whatever this machine's network is.
func (p *process) advertise(server string) {
	p.t.Helper()
	admin := p.config()
	kubeconfig, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Config", "clusters": []any{
		map[string]any{"name": "", "cluster": map[string]any{"server": server, "certificate-authority-data": admin.CAData}}}})
	if err != nil {
		p.t.Fatal(err)
	}
	maps := client(p.t, admin).CoreV1().ConfigMaps("kube-public")
	info := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"}, Data: map[string]string{"kubeconfig": string(kubeconfig)}}
	if _, err = maps.Create(p.t.Context(), info, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
		_, err = maps.Update(p.t.Context(), info, metav1.UpdateOptions{})
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func TestToken(t *testing.T) {
	parallel(t)
	dir := t.TempDir()
	p := start(t, dir, bare...)
	token := func(args ...string) string { return karve(t, append([]string{"token"}, args...)...) }

	made := strings.TrimSuffix(token("create", "--data-dir", dir), "\n")
	if !regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`).MatchString(made) {
		t.Fatalf("karve token create: got %q, want a token", made)
	}
	id, _, _ := strings.Cut(made, ".")
	user, err := p.whoIs(made)
	if err != nil || user.Username != "system:bootstrap:"+id || !strings.Contains(strings.Join(user.Groups, " "), "system:bootstrappers:kubeadm:default-node-token") {
		t.Errorf("who has the token: got %+v, %v, want a node that joins", user, err)
	}

	const own, secret = "abcdef.fedcba9876543210", "fedcba9876543210"
	if got := token("create", "--data-dir", dir, "--ttl", "0", "--description", "for tests", own); got != own+"\n" {
		t.Errorf("karve token create %s: got %q", own, got)
	}
	wantProblems(t, finish(t, command(t, "karve", "token", "create", "--data-dir", dir, own)), "a token with the ID abcdef exists…karve token delete abcdef")

	if table := token("list", "--data-dir", dir); !regexp.MustCompile(`(?m)^`+own+` +<forever> +<never> +authentication,signing +for tests +system:bootstrappers:kubeadm:default-node-token$`).MatchString(table) || !strings.Contains(table, made) {
		t.Errorf("karve token list: got\n%swant both tokens", table)
	}
	var listed []struct {
		Token, Description, Expires string
		Usages, Groups              []string
	}
	if err := json.Unmarshal([]byte(token("list", "--data-dir", dir, "-o", "json")), &listed); err != nil || len(listed) != 2 {
		t.Fatalf("karve token list -o json: got %+v, %v, want two tokens", listed, err)
	}
	for _, l := range listed {
		if (l.Token == own) != (l.Expires == "") {
			t.Errorf("%s: expires %q", l.Token, l.Expires)
		}
	}

	if got := token("delete", "--data-dir", dir, "abcdef", made); got != fmt.Sprintf("bootstrap token \"abcdef\" deleted\nbootstrap token %q deleted\n", id) {
		t.Errorf("karve token delete: got %q", got)
	}
	wantProblems(t, finish(t, command(t, "karve", "token", "delete", "--data-dir", dir, own)), "there is no token with the ID abcdef")
	if got := token("list", "--data-dir", dir, "-o", "json"); got != "[]\n" {
		t.Errorf("karve token list -o json: got %q, want none", got)
	}

	// An expired token is refused, and the list says so until the token cleaner removes it.
	short := strings.TrimSuffix(token("create", "--data-dir", dir, "--ttl", "1s"), "\n")
	eventually.Nil(t, "the token to expire", func() error {
		if table := token("list", "--data-dir", dir); !strings.Contains(table, "<expired>") {
			return fmt.Errorf("got\n%swant an expired one", table)
		}
		return nil
	})
	// For ten seconds, the API server would remember a token that it has accepted.
	if user, err := p.whoIs(short); !apierrors.IsUnauthorized(err) {
		t.Errorf("who has the expired token: got %+v, %v, want that it is refused", user, err)
	}
	if log := p.stderr.String(); strings.Contains(log, secret) {
		t.Errorf("the server's log has the secret of a token:\n%s", log)
	}
}

// The line that joins a machine names the address that the server advertises, and a hash of its
// authority that openssl computes too. If there is no such address, nothing is created.
func TestTokenPrintsTheJoinCommand(t *testing.T) {
	long(t)
	parallel(t)
	dir := t.TempDir()
	p := start(t, dir, bare...)
	p.advertise("https://127.0.0.1:6443")
	for _, flag := range []string{"--print-join-command", "--print-install-command"} {
		wantProblems(t, finish(t, command(t, "karve", "token", "create", "--data-dir", dir, flag)), "https://127.0.0.1:6443, which other machines cannot reach…--advertise-address")
	}
	if got := karve(t, "token", "list", "--data-dir", dir, "-o", "json"); got != "[]\n" {
		t.Errorf("tokens after a refusal: got %s, want none", got)
	}
	p.advertise("https://192.0.2.7:6443")
	line := karve(t, "token", "create", "--data-dir", dir, "--print-join-command")
	match := regexp.MustCompile(`^kubeadm join 192\.0\.2\.7:6443 --token ([a-z0-9]{6}\.[a-z0-9]{16}) --discovery-token-ca-cert-hash (sha256:[0-9a-f]{64})\n$`).FindStringSubmatch(line)
	if match == nil {
		t.Fatalf("got %q, want a line for kubeadm", line)
	}
	if _, err := p.whoIs(match[1]); err != nil {
		t.Errorf("the token in the line: %v", err)
	}
	if want := publicKeyHash(t, filepath.Join(dir, "certs", "server-ca.crt")); match[2] != want {
		t.Errorf("hash: got %s, want %s", match[2], want)
	}
	install := karve(t, "token", "create", "--data-dir", dir, "--print-install-command")
	if !regexp.MustCompile(`^curl \S+ \S+ https://\S+/install\.sh && KARVE_TOKEN=\S+ sh \S+ node --server https://192\.0\.2\.7:6443 --ca-hash ` + match[2] + `\n$`).MatchString(install) {
		t.Errorf("got %q, want a line for install.sh", install)
	}
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("ssh-user: pi\ndata-dir: "+dir+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := karve(t, "token", "create", "--config", config, "--print-install-command"); !strings.HasSuffix(got, " --ssh-user pi\n") {
		t.Errorf("got %q, want --ssh-user of the server's configuration", got)
	}
	wantProblems(t, finish(t, command(t, "karve", "token", "create", "--data-dir", dir, "--print-join-command", "--print-install-command")), "--print-install-command")
}

func TestTokenBadInput(t *testing.T) {
	t.Parallel()
	stopped := t.TempDir()
	if err := os.Mkdir(filepath.Join(stopped, "certs"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(stopped, "admin.kubeconfig"), []byte(`{"apiVersion":"v1","kind":"Config","current-context":"karve","contexts":[{"name":"karve","context":{"cluster":"karve"}}],"clusters":[{"name":"karve","cluster":{"server":"http://127.0.0.1:1"}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args string
		want []string
	}{
		{"create --ttl tomorrow", []string{"--ttl…tomorrow…a duration"}},
		{"create --data-dir /nowhere/at/all", []string{"no server has been started in /nowhere/at/all"}},
		{"create --data-dir " + stopped, []string{"no server runs in " + stopped + "…--data-dir"}},
		{"create --kubeconfig x", []string{"--kubeconfig; run this on the server's machine"}},
		{"create --usages signing", []string{"--usages; a token is for a machine that joins"}},
		{"list abcdef.fedcba9876543210", []string{"takes options only, got \"abcdef.…\""}},
		{"list -o yaml --data-dir " + stopped, []string{"--output…yaml…json"}},
		{"list --data-dir " + stopped, []string{"no server runs in " + stopped}},
		{"delete --data-dir " + stopped, []string{"needs TOKEN|ID"}},
		{"delete --data-dir " + stopped + " abcdef", []string{"no server runs in " + stopped}},
		{"abcdef.fedcba9876543210", []string{"there is no command…abcdef.…"}},
	} {
		t.Run(tc.args, func(t *testing.T) {
			got := finish(t, command(t, "karve", append([]string{"token"}, strings.Fields(tc.args)...)...))
			wantProblems(t, got, tc.want...)
			if strings.Contains(got.stderr+got.stdout, "fedcba98") {
				t.Errorf("a secret is in %q", got.stderr)
			}
		})
	}
}

func TestKubeconfigForAnotherMachine(t *testing.T) {
	long(t)
	parallel(t)
	dir := t.TempDir()
	p := start(t, dir, append(bare, "--tls-san", "board.example")...)
	port := p.url[strings.LastIndex(p.url, ":")+1:]
	run := func(server string, more ...string) outcome {
		return finish(t, command(t, "karve", append([]string{"kubeconfig", "--data-dir", dir, "--server", server}, more...)...))
	}
	admin := p.config()
	for _, tc := range []struct{ server, want string }{
		{"board.example", "https://board.example:" + port},
		{"https://board.example:443", "https://board.example:443"},
		{"other.example", "https://other.example:" + port},
	} {
		got := run(tc.server)
		config, err := clientcmd.RESTConfigFromKubeConfig([]byte(got.stdout))
		if got.code != 0 || err != nil || config.Host != tc.want {
			t.Errorf("--server %s: got %+v, %v, want a kubeconfig for %s", tc.server, got, err, tc.want)
			continue
		}
		if string(config.CAData) != string(admin.CAData) || string(config.CertData) != string(admin.CertData) || string(config.KeyData) != string(admin.KeyData) {
			t.Errorf("--server %s: the authority or the user is another one than in admin.kubeconfig", tc.server)
		}
	}
	into := filepath.Join(t.TempDir(), "config")
	if got := run("board.example", "--into", into); got.code != 0 || got.stderr != "" {
		t.Errorf("--into: got %+v", got)
	}
	if config, err := clientcmd.BuildConfigFromFlags("", into); err != nil || config.Host != "https://board.example:"+port {
		t.Errorf("merged: got %+v, %v", config, err)
	}

	p.stop()
	if got := run("other.example"); got.code != 0 {
		t.Errorf("without a server: got %+v, want a kubeconfig", got)
	}
}

// publicKeyHash is what `openssl x509 -pubkey | openssl rsa -pubin -outform der | openssl dgst -sha256`
// prints.
func publicKeyHash(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKIXPublicKey(certificate.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(key))
}
