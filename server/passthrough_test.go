package server_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/pflag"
	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	apioptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	manageroptions "k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	scheduleroptions "k8s.io/kubernetes/cmd/kube-scheduler/app/options"

	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/controllers"
	"github.com/karve-k8s/karve/server/scheduler"
)

// These tests use upstream options that change what is served and how it is reached.

// TestEachOptionOfUpstreamHasAnEffectOrIsRefused: testdata/options.txt has the options that are passed on, and that somebody has
// seen to have their effect in this process. Look at one that is new, and add it there or to the package's ownedFlags. Upstream's
// controllers get the options of their own sections as a whole.
func TestEachOptionOfUpstreamHasAnEffectOrIsRefused(t *testing.T) {
	manager, err := manageroptions.NewKubeControllerManagerOptions()
	fatal(t, err)
	known, err := os.ReadFile("testdata/options.txt")
	fatal(t, err)
	var passed []string
	for component, of := range map[string]struct {
		sets cliflag.NamedFlagSets
		find func(string) (bool, string)
	}{
		"kube-apiserver":      {apioptions.NewServerRunOptions().Flags(), apiserver.Find},
		controllers.Component: {manager.Flags(app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()), controllers.Find},
		scheduler.Component:   {*scheduleroptions.NewOptions().Flags, scheduler.Find},
	} {
		for section, set := range of.sets.FlagSets {
			line := component + " [" + section + "]"
			set.VisitAll(func(f *pflag.Flag) {
				if _, instead := of.find(f.Name); instead == "" {
					line += " " + f.Name
				}
			})
			if !strings.HasSuffix(line, "]") && !strings.HasSuffix(section, "-controller") {
				passed = append(passed, line)
			}
		}
	}
	slices.Sort(passed)
	if got := strings.Join(passed, "\n") + "\n"; got != string(known) {
		t.Errorf("other options are passed on than those of testdata/options.txt:\n%s", got)
	}
}

// kube-api-qps and kube-api-burst limit the controllers, who have no limit otherwise.
func TestControllersAreLimited(t *testing.T) {
	for _, test := range []struct {
		args  []string
		qps   float32
		burst int
	}{{nil, -1, 0}, {[]string{"kube-api-qps=3", "kube-api-burst=7"}, 3, 7}} {
		o, err := controllers.Parse(controllers.Settings{Args: test.args})
		fatal(t, err)
		if got := o.Limit(&rest.Config{QPS: -1}); got.QPS != test.qps || got.Burst != test.burst {
			t.Errorf("%v: got %v and %d", test.args, got.QPS, got.Burst)
		}
	}
}

// The options of kube-apiserver are at /flagz, as upstream; the URLs of the storage may have passwords.
func TestOptionsAreServed(t *testing.T) {
	c := shared(t)
	body, err := c.Discovery().RESTClient().Get().AbsPath("/flagz").SetHeader("Accept", "text/plain").DoRaw(t.Context())
	fatal(t, err)
	for _, want := range []string{"authorization-mode.*Node.*RBAC", "etcd-servers.*CLASSIFIED", "kubelet-timeout"} {
		if !regexp.MustCompile(want).Match(body) {
			t.Errorf("%s is not in\n%s", want, body)
		}
	}
}

// connectProxy is an HTTP CONNECT proxy at a Unix socket. It records the destinations.
type connectProxy struct {
	mu sync.Mutex
	to []string
}

func (p *connectProxy) connections() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.to, " ")
}

func (p *connectProxy) serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			from := bufio.NewReader(conn)
			r, err := http.ReadRequest(from)
			if err != nil || r.Method != http.MethodConnect {
				return
			}
			p.mu.Lock()
			p.to = append(p.to, r.Host)
			p.mu.Unlock()
			onward, err := net.Dial("tcp", r.Host)
			if err != nil {
				return
			}
			defer onward.Close()
			fmt.Fprint(conn, "HTTP/1.1 200 Connection established\r\n\r\n")
			go io.Copy(onward, from)
			io.Copy(conn, onward)
		}()
	}
}

// Webhooks with a URL are in the control plane's network, which is reached through a proxy
// here.
func TestEgressSelector(t *testing.T) {
	dir, err := os.MkdirTemp("", "karve-egress-") // a socket's path must be short
	fatal(t, err)
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "proxy")
	l, err := net.Listen("unix", socket)
	fatal(t, err)
	defer l.Close()
	proxy := &connectProxy{}
	go proxy.serve(l)
	selector := writeFile(t, "egress.yaml", `
apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: controlplane
  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: `+socket+`}}}
- name: cluster
  connection: {proxyProtocol: Direct}
`)
	c := start(t, func(config *server.Config) {
		config.APIServerArgs = []string{"egress-selector-config-file=" + selector}
	})
	ns := c.namespace(t)
	url, ca := serveTLS(t, "127.0.0.1", nil, nil, review(t, func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "through the proxy, no"}}
	}))
	c.validate(t, ns, ns, registrationv1.WebhookClientConfig{URL: &url, CABundle: ca})
	refusedSoon(t, c, ns, "through the proxy, no")
	if host := strings.TrimPrefix(url, "https://"); !strings.Contains(proxy.connections(), host) {
		t.Errorf("the proxy connected to %q, want %s among them", proxy.connections(), host)
	}
}
