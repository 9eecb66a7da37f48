package join

import (
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pubkeypin"
)

// joined is a machine that is a node, whose kubelet has a certificate.
type joined struct {
	*testMachine
	s       *testServer
	o       Options
	current string // the kubelet's link to its certificate
	said    string
	// running is what the kubelet's process has read.
	running, kubeconfig string
	restarts            int
}

func newJoined(t *testing.T, until time.Time, change ...func(*Options)) *joined {
	t.Helper()
	s := newServer(t, "127.0.0.1")
	s.signer = newCA(t, "client-ca")
	s.clients = []testCA{s.signer}
	j := &joined{testMachine: newMachine(t), s: s, o: optionsFor(s)}
	j.o.Kubelet = withKubelet(t, j.testMachine, s)
	j.o.CAHashes = append(j.o.CAHashes, pubkeypin.Hash(s.signer.cert))
	for _, c := range change {
		c(&j.o)
	}
	s.sign(t, goodToken, slices.Concat(s.ca.pem, s.clients[0].pem))
	if err := Join(t.Context(), j.Machine, j.o); err != nil {
		t.Fatal(err)
	}
	s.setNode("board", func(n *corev1.Node) {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	})
	key, request, err := makeRequest("board")
	if err != nil {
		t.Fatal(err)
	}
	pki := j.path(kubeletDir + "/pki")
	j.current = filepath.Join(pki, "kubelet-client-current.pem")
	dated := filepath.Join(pki, "kubelet-client-2026-01-02-03-04-05.pem")
	if err := os.WriteFile(dated, slices.Concat(s.clients[0].client(request, until), key), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dated, j.current); err != nil {
		t.Fatal(err)
	}
	// As upstream's writeKubeconfigFromBootstrapping has it.
	config := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"default-cluster": {Server: s.url, CertificateAuthorityData: []byte(j.read(caFile) + "\n")}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"default-auth": {ClientCertificate: j.current, ClientKey: j.current}},
		Contexts:       map[string]*clientcmdapi.Context{"default-context": {Cluster: "default-cluster", AuthInfo: "default-auth"}},
		CurrentContext: "default-context",
	}
	if err := clientcmd.WriteToFile(config, j.path(kubeconfigFile)); err != nil {
		t.Fatal(err)
	}
	j.o.Say = func(format string, args ...any) { j.said += fmt.Sprintf(format+"\n", args...) }
	j.answers["systemctl restart"] = func([]string) (string, error) {
		text, err := os.ReadFile(j.current)
		if err != nil {
			return "", err
		}
		j.running, j.kubeconfig, j.restarts = string(text), j.read(kubeconfigFile), j.restarts+1
		s.mu.Lock()
		s.renewed = time.Now().Add(time.Minute)
		s.mu.Unlock()
		s.setNode("board", func(n *corev1.Node) { ready(n); n.Status.NodeInfo.KubeletVersion = "v1.37.2" })
		return "", nil
	}
	return j
}

// replace makes the authorities of a server others. With former, it accepts those from before, too.
func (j *joined) replace(t *testing.T, former, signs bool) {
	t.Helper()
	ca, client := newCA(t, "server-ca-2"), newCA(t, "client-ca-2")
	bundle := slices.Concat(ca.pem, client.pem)
	if former {
		bundle = slices.Concat(bundle, j.s.ca.vouch(t, ca), j.s.ca.pem, j.s.clients[0].vouch(t, client), j.s.clients[0].pem)
	}
	j.s.sign(t, goodToken, bundle)
	if !former {
		j.s.clients = nil
	}
	j.s.clients = append([]testCA{client}, j.s.clients...)
	if signs {
		j.s.signer = client
		serving := ca.serving(t, "127.0.0.1")
		if former {
			serving.Certificate = append(serving.Certificate, parsePEM(t, j.s.ca.vouch(t, ca)).Raw)
		}
		j.s.present(serving)
	}
	j.s.hash = pubkeypin.Hash(ca.cert)
	j.s.ca = ca
}

// hashes are those of the server's present authorities.
func (j *joined) hashes() []string { return []string{j.s.hash, pubkeypin.Hash(j.s.clients[0].cert)} }

// bundle has the authorities of cluster-info.
func (j *joined) bundle() ([]byte, error) {
	config, err := clientcmd.Load([]byte(j.s.info["kubeconfig"]))
	if err != nil {
		return nil, err
	}
	return config.Clusters[""].CertificateAuthorityData, nil
}

func parsePEM(t *testing.T, text []byte) *x509.Certificate {
	t.Helper()
	all, err := certutil.ParseCertsPEM(text)
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// check wants the number of restarts, and that the process and the files have the certificate of an authority.
func (j *joined) check(t *testing.T, restarts int, issuer string) {
	t.Helper()
	if j.restarts != restarts {
		t.Errorf("the kubelet was restarted %d times, want %d (%s)", j.restarts, restarts, j.said)
	}
	text, err := os.ReadFile(j.current)
	if err != nil {
		t.Fatal(err)
	}
	if got := parsePEM(t, text).Issuer.CommonName; got != issuer {
		t.Errorf("the certificate is of %s, want %s", got, issuer)
	}
	info, err := os.Stat(j.current)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v", info, err)
	}
	if restarts == 0 {
		return
	}
	if j.running != string(text) {
		t.Error("the kubelet runs with another certificate than the one in its file")
	}
	config, err := clientcmd.Load([]byte(j.kubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range config.Clusters {
		if got := strings.TrimSpace(string(c.CertificateAuthorityData)); got != j.read(caFile) {
			t.Errorf("the kubelet trusts\n%s\nand %s has\n%s", got, caFile, j.read(caFile))
		}
	}
	cluster, err := j.bundle()
	if err != nil || strings.TrimSpace(string(cluster)) != j.read(caFile) {
		t.Errorf("%s does not have the cluster's authorities (%v)", caFile, err)
	}
}

func (j *joined) follow(t *testing.T) {
	t.Helper()
	if err := Follow(t.Context(), j.Machine, j.o); err != nil {
		t.Error(err)
	}
}

func TestNodeTakesNewAuthorities(t *testing.T) {
	t.Parallel()
	j := newJoined(t, time.Now().Add(time.Hour))
	j.follow(t)
	j.check(t, 0, "client-ca")
	j.replace(t, true, true)
	j.follow(t)
	j.check(t, 1, "client-ca-2")
	if m := j.s.requests[0]; m.Spec.SignerName != "kubernetes.io/kube-apiserver-client-kubelet" {
		t.Errorf("got the signer %s", m.Spec.SignerName)
	}
	j.follow(t)
	j.check(t, 1, "client-ca-2")
	// The old authorities are dropped.
	j.s.clients = j.s.clients[:1]
	j.s.sign(t, goodToken, slices.Concat(j.s.ca.pem, j.s.clients[0].pem))
	j.follow(t)
	j.check(t, 2, "client-ca-2")
	j.follow(t)
	j.check(t, 2, "client-ca-2")
	// By hand.
	j.replace(t, true, true)
	if err := Upgrade(t.Context(), j.Machine, Options{Say: j.o.Say}); err != nil {
		t.Error(err)
	}
	j.check(t, 3, "client-ca-2")
}

// Of several servers, all trust the new authorities before one of them signs.
func TestNodeTrustsAuthoritiesThatDoNotSignYet(t *testing.T) {
	t.Parallel()
	j := newJoined(t, time.Now().Add(time.Hour))
	j.replace(t, true, false)
	j.follow(t)
	j.check(t, 1, "client-ca")
	j.follow(t)
	j.check(t, 1, "client-ca")
	j.s.signer = j.s.clients[0]
	j.follow(t)
	j.check(t, 2, "client-ca-2")
	j.follow(t)
	j.check(t, 2, "client-ca-2")
}

// The machine goes off at any point. What the kubelet finds is accepted, and the next look finishes it.
func TestAuthoritiesAreTakenOverAgainAfterAnInterruption(t *testing.T) {
	t.Parallel()
	j := newJoined(t, time.Now().Add(time.Hour))
	j.replace(t, true, true)
	restart := j.answers["systemctl restart"]
	j.answers["systemctl restart"] = func([]string) (string, error) { return "", errStandIn }
	wantError(t, Follow(t.Context(), j.Machine, j.o), "it fails")
	if _, err := j.ownNode(t.Context(), &record{Node: "board"}); err != nil {
		t.Error(err)
	}
	// The service of Follow ends with the kubelet.
	ctx, cancel := context.WithCancel(t.Context())
	j.answers["systemctl restart"] = func(args []string) (string, error) { cancel(); return restart(args) }
	if err := Follow(ctx, j.Machine, j.o); err != nil {
		t.Error(err)
	}
	j.check(t, 1, "client-ca-2")
}

// Whoever may write cluster-info makes no authority of a node: not by a certificate of their own, nor by one that an authority has
// signed for them as a client, nor by the name of an authority.
func TestNodeTakesOnlyAuthoritiesThatAreVouchedFor(t *testing.T) {
	t.Parallel()
	j := newJoined(t, time.Now().Add(time.Hour))
	own, posing := newCA(t, "jane"), newCA(t, "client-ca")
	key, request, err := makeRequest("jane")
	if err != nil {
		t.Fatal(err)
	}
	asClient := j.s.clients[0].client(request, time.Now().Add(time.Hour))
	signed := selfSigned(t, parsePEM(t, asClient), key)
	planted := slices.Concat(own.pem, posing.pem, posing.vouch(t, own), asClient, signed)
	offer := func() { j.s.sign(t, goodToken, slices.Concat([]byte(j.read(caFile)+"\n"), planted)) }
	offer()
	j.follow(t)
	j.check(t, 0, "client-ca")
	if !strings.Contains(j.said, "does not trust 5 of them (sha256:") {
		t.Errorf("got %q, want that it ignores them", j.said)
	}
	// A true replacement goes on beside them.
	j.replace(t, true, true)
	bundle, err := j.bundle()
	if err != nil {
		t.Fatal(err)
	}
	j.s.sign(t, goodToken, slices.Concat(planted, bundle))
	j.follow(t)
	j.s.sign(t, goodToken, bundle)
	j.check(t, 1, "client-ca-2")
	j.follow(t)
	j.check(t, 1, "client-ca-2")
	// Nor does a machine that joins.
	j.s.sign(t, goodToken, slices.Concat(bundle, planted))
	j.o.CAHashes = j.hashes()
	c, err := discover(t, j.o)
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(c.CA)) == "" || strings.Contains(string(c.CA), strings.TrimSpace(string(own.pem))) || strings.Contains(string(c.CA), strings.TrimSpace(string(signed))) {
		t.Errorf("a join takes\n%s", c.CA)
	}
}

// A certificate that the cluster does not accept changes nothing.
func TestAuthoritiesThatDoNotWorkAreNotTaken(t *testing.T) {
	t.Parallel()
	j := newJoined(t, time.Now().Add(time.Hour))
	j.replace(t, true, true)
	before, config := j.read(kubeconfigFile), j.read(caFile)
	j.s.signer = newCA(t, "a broken one")
	wantError(t, Follow(t.Context(), j.Machine, j.o), "the new certificate of the node board", "does not accept")
	j.check(t, 0, "client-ca")
	if j.read(kubeconfigFile) != before || j.read(caFile) != config {
		t.Error("a file was changed")
	}
}

func TestJoinAgainWithoutAcceptedCertificate(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		until   time.Duration
		dropped bool
		issuer  string
	}{
		{"expired", -time.Minute, false, "client-ca"},
		{"of an authority that was dropped", time.Hour, true, "client-ca-2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			j := newJoined(t, time.Now().Add(tc.until))
			if tc.dropped {
				j.replace(t, false, true)
			}
			again := j.o
			again.CAHashes = j.hashes()
			if state, err := Status(t.Context(), j.Machine); err != nil || state.Ready || !strings.Contains(state.Problem, "karve token create") {
				t.Errorf("got %+v, %v", state, err)
			}
			wantError(t, Upgrade(t.Context(), j.Machine, Options{}), "does not accept the certificate", "karve token create")
			if Accepted(t.Context(), j.Machine, j.s.url) {
				t.Error("the certificate is said to be accepted")
			}
			old := again
			old.Token, old.Patience = "fedcba.0123456789abcdef", time.Millisecond
			wantError(t, Join(t.Context(), j.Machine, old), "--token")
			j.setMachineID("another")
			wantError(t, Join(t.Context(), j.Machine, again), "--node-name board")
			j.setMachineID("id-of-board")
			j.check(t, 0, "client-ca")
			if err := Join(t.Context(), j.Machine, again); err != nil {
				t.Fatal(err)
			}
			j.check(t, 1, tc.issuer)
			if state, err := Status(t.Context(), j.Machine); err != nil || !state.Ready {
				t.Errorf("got %+v, %v", state, err)
			}
			if len(j.cri.log) > 0 {
				t.Errorf("Pods: %v", j.cri.log)
			}
			if err := Join(t.Context(), j.Machine, again); err != nil || !strings.Contains(j.said, "nothing is changed") {
				t.Errorf("got %v, %s", err, j.said)
			}
			j.check(t, 1, tc.issuer)
		})
	}
}

func (j *joined) setMachineID(id string) {
	j.s.setNode("board", func(n *corev1.Node) { n.Status.NodeInfo.MachineID = id })
}

// The server may have another address by then. It has to be the same cluster.
func TestJoinAgainAtAnotherAddress(t *testing.T) {
	t.Parallel()
	j := newJoined(t, time.Now().Add(-time.Minute))
	r, err := j.readRecord()
	if err != nil {
		t.Fatal(err)
	}
	r.Server = "https://192.0.2.9:6443"
	if err := j.writeRecord(r); err != nil {
		t.Fatal(err)
	}
	node := j.s.nodes["board"]
	j.s.removeNode("board")
	wantError(t, Join(t.Context(), j.Machine, j.o), "already the node board of https://192.0.2.9:6443")
	j.check(t, 0, "client-ca")
	j.s.setNode("board", func(n *corev1.Node) { *n = *node })
	if err := Join(t.Context(), j.Machine, j.o); err != nil {
		t.Fatal(err)
	}
	j.check(t, 1, "client-ca")
	if r, err := j.readRecord(); err != nil || r.Server != j.s.url {
		t.Errorf("got %+v, %v", r, err)
	}
}
