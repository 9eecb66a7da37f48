package server_test

import (
	"context"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/internal/ownports"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/apiserver/egress"
	"github.com/karve-k8s/karve/server/deviations"
)

// ownPort is a port without authentication of this process, at which nothing may arrive.
func ownPort(t *testing.T, address string) (port int32) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	fatal(t, err)
	remove := ownports.Add(l)
	accepting := make(chan struct{})
	var read sync.WaitGroup
	go func() {
		defer close(accepting)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			read.Go(func() {
				defer conn.Close()
				if text, _ := io.ReadAll(io.LimitReader(conn, 100)); len(text) > 0 {
					t.Errorf("at a port of this process arrives %q", text)
				}
			})
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-accepting
		read.Wait()
		remove()
	})
	return int32(l.Addr().(*net.TCPAddr).Port)
}

// redirecting answers every webhook with a redirect, in turn to a port of this process and to another
// host. Nothing may arrive at either. The first element of a path is the kind of client.
type redirecting struct {
	at   string
	ca   []byte
	mu   sync.Mutex
	seen map[string]int
}

func newRedirecting(t *testing.T) *redirecting {
	r := &redirecting{seen: map[string]int{}}
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "issuer") { // that is no webhook
			t.Errorf("at the other host arrives %s %s", r.Method, r.URL)
		}
	}))
	t.Cleanup(elsewhere.Close)
	targets := []string{elsewhere.URL, fmt.Sprintf("http://localhost:%d", ownPort(t, "127.0.0.1"))} // the second comes first
	r.at, r.ca = serveTLS(t, "127.0.0.1", []string{"hook." + egressNamespace + ".svc"}, nil, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		kind := strings.Split(q.URL.Path, "/")[1]
		http.Redirect(w, q, targets[r.add(kind)%len(targets)]+"/by-"+kind, http.StatusTemporaryRedirect)
	}))
	return r
}

func (r *redirecting) add(kind string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[kind]++
	return r.seen[kind]
}

// asked waits until a kind of client has got both redirects. try makes it ask.
func (r *redirecting) asked(t *testing.T, kind string, try func()) {
	t.Helper()
	eventually.True(t, kind+" asks", func() bool {
		if try != nil {
			try()
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.seen[kind] >= 2
	})
}

func (r *redirecting) kubeconfig(t *testing.T, kind string) (file string) {
	return writeFile(t, kind, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
		"clusters": [{"name": "c", "cluster": {"server": "%s/%s", "certificate-authority-data": %s}}]}`, r.at, kind, must(json.Marshal(r.ca))))
}

func must(text []byte, err error) string {
	if err != nil {
		panic(err)
	}
	return string(text)
}

const egressNamespace = "egress"

// Nobody who is named to the API server, or who answers it, makes it connect to its own ports without
// authentication; and a webhook's redirect leads nowhere. There is a test for each kind of client.
func TestWhatUsersNameReachesNoPortOfTheServer(t *testing.T) {
	compares(t, deviations.ExternalNames)
	reachNoPort(t)
}

// No deviation is a guard.
func TestUpstreamsCodeReachesNoPortOfTheServer(t *testing.T) {
	reachNoPort(t, func(config *server.Config) {
		config.Upstream = []string{deviations.All}
		config.APIServerArgs = append(config.APIServerArgs, "enable-aggregator-routing=false") // with it, upstream refuses the Services
	})
}

func reachNoPort(t *testing.T, configure ...func(*server.Config)) {
	hook := newRedirecting(t)
	policy := writeFile(t, "policy.yaml", `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [
		{"level": "Metadata", "verbs": ["create"], "resources": [{"group": "", "resources": ["configmaps"]}]}, {"level": "None"}]}`)
	c := start(t, func(config *server.Config) {
		config.DisableControllers = []string{"node-lifecycle-controller"} // because the fake node reports no status
		config.APIServerArgs = []string{
			"authentication-token-webhook-config-file=" + hook.kubeconfig(t, "authentication"),
			"authorization-mode=Node,RBAC,Webhook", "authorization-webhook-config-file=" + hook.kubeconfig(t, "authorization"),
			"audit-policy-file=" + policy, "audit-webhook-config-file=" + hook.kubeconfig(t, "audit"), "audit-webhook-initial-backoff=10ms",
			"audit-webhook-mode=batch", "audit-webhook-batch-max-wait=10ms",
			"oidc-issuer-url=" + hook.at + "/issuer", "oidc-client-id=karve", "oidc-ca-file=" + writeFile(t, "ca.crt", string(hook.ca)),
		}
		for _, change := range configure {
			change(config)
		}
	})
	create(t, c.CoreV1().Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: egressNamespace}})
	names := func(name string, port int32) *registrationv1.ServiceReference {
		create(t, c.CoreV1().Services(egressNamespace), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}})
		return &registrationv1.ServiceReference{Namespace: egressNamespace, Name: name, Port: &port}
	}
	own := ownPort(t, "127.0.0.1")
	hookService, ownService := names("hook", portOf(t, hook.at)), names("own", own)
	ownURL := fmt.Sprintf("https://localhost:%d", own)
	ownHook := registrationv1.WebhookClientConfig{URL: &ownURL, CABundle: hook.ca}
	atHook := func(kind string) registrationv1.WebhookClientConfig {
		return registrationv1.WebhookClientConfig{URL: ptr.To(hook.at + "/" + kind), CABundle: hook.ca}
	}

	t.Run("issuer of tokens", func(t *testing.T) { // the first answer redirects to the port
		eventually.True(t, "the issuer is asked", func() bool { hook.mu.Lock(); defer hook.mu.Unlock(); return hook.seen["issuer"] > 0 })
	})
	t.Run("authentication", func(t *testing.T) {
		n := 0
		hook.asked(t, "authentication", func() {
			n++
			config := rest.AnonymousClientConfig(c.admin)
			config.BearerToken = fmt.Sprintf("unknown-%d", n)
			_, _ = clientFor(t, config).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		})
	})
	t.Run("authorization", func(t *testing.T) {
		nobody := clientFor(t, c.withCertificate(t, pkix.Name{CommonName: "nobody"}))
		hook.asked(t, "authorization", func() { _, _ = nobody.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}) })
	})
	t.Run("audit", func(t *testing.T) {
		n := 0
		hook.asked(t, "audit", func() {
			n++
			create(t, c.CoreV1().ConfigMaps(egressNamespace), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("audited-%d", n)}})
		})
	})
	for kind, client := range map[string]registrationv1.WebhookClientConfig{
		"validating": atHook("validating"), "validating-own": ownHook,
		"validating-service": {Service: withPath(hookService, "/validating-service"), CABundle: hook.ca}, "validating-service-own": {Service: ownService, CABundle: hook.ca},
	} {
		t.Run(kind, func(t *testing.T) {
			c.validate(t, kind, egressNamespace, client)
			c.admissionAsks(t, hook, kind)
		})
	}
	for kind, client := range map[string]registrationv1.WebhookClientConfig{"mutating": atHook("mutating"), "mutating-own": ownHook} {
		t.Run(kind, func(t *testing.T) {
			configurations := c.AdmissionregistrationV1().MutatingWebhookConfigurations()
			create(t, configurations, &registrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: kind}, Webhooks: []registrationv1.MutatingWebhook{{
				Name: kind + ".karve.test", Rules: configMaps, NamespaceSelector: inNamespace(egressNamespace), ClientConfig: client,
				SideEffects: ptr.To(registrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"}}}})
			t.Cleanup(func() { _ = configurations.Delete(context.Background(), kind, metav1.DeleteOptions{}) })
			c.admissionAsks(t, hook, kind)
		})
	}
	for kind, url := range map[string]string{"conversion": hook.at + "/conversion", "conversion-own": ownURL} {
		t.Run(kind, func(t *testing.T) { c.conversionAsks(t, hook, kind, url) })
	}
	for kind, to := range map[string]*registrationv1.ServiceReference{"aggregated": hookService, "aggregated-own": ownService} {
		t.Run(kind, func(t *testing.T) { c.aggregatorAsks(t, hook, kind, to) })
	}
	t.Run("proxies", func(t *testing.T) { c.proxiesAsk(t) })
}

// namesOwn returns an error unless text is the reason why a connection to a port of this process failed.
func namesOwn(text string) error {
	if !strings.Contains(text, ownports.ErrOwn.Error()) {
		return fmt.Errorf("got %q, want %q in it", text, ownports.ErrOwn)
	}
	return nil
}

func withPath(s *registrationv1.ServiceReference, path string) *registrationv1.ServiceReference {
	s = s.DeepCopy()
	s.Path = &path
	return s
}

// admissionAsks creates ConfigMaps until the webhook of this kind has redirected twice, or is refused.
func (c *cluster) admissionAsks(t *testing.T, hook *redirecting, kind string) {
	t.Helper()
	var last error
	try := func() {
		_, err := c.CoreV1().ConfigMaps(egressNamespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: kind}}, metav1.CreateOptions{})
		if err != nil { // otherwise it is too early
			last = err
		}
	}
	if strings.HasSuffix(kind, "-own") {
		eventually.Nil(t, kind, func() error { try(); return namesOwn(fmt.Sprint(last)) })
		return
	}
	hook.asked(t, kind, try)
	eventually.Nil(t, kind, func() error {
		try()
		if !strings.Contains(fmt.Sprint(last), egress.ErrRedirect.Error()) {
			return fmt.Errorf("got %w, want %w", last, egress.ErrRedirect)
		}
		return nil
	})
}

func (c *cluster) conversionAsks(t *testing.T, hook *redirecting, kind, url string) {
	definition := boatDefinition()
	definition.Spec.Group = kind + ".egress.karve.test"
	definition.Name = "boats." + definition.Spec.Group
	definition.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &url, CABundle: hook.ca}, ConversionReviewVersions: []string{"v1"}}}
	definitions := c.definitions(t)
	create(t, definitions, definition)
	t.Cleanup(func() { _ = definitions.Delete(context.Background(), definition.Name, metav1.DeleteOptions{}) })
	made := boat("longship", map[string]any{"sails": int64(1)}, nil)
	made.SetAPIVersion(definition.Spec.Group + "/v2")
	var last error
	try := func() {
		_, last = c.dynamic.Resource(schema.GroupVersionResource{Group: definition.Spec.Group, Version: "v2", Resource: "boats"}).Namespace(egressNamespace).Create(t.Context(), made, metav1.CreateOptions{})
	}
	if kind == "conversion-own" {
		eventually.Nil(t, kind, func() error { try(); return namesOwn(fmt.Sprint(last)) })
		return
	}
	hook.asked(t, kind, try)
}

func (c *cluster) aggregatorAsks(t *testing.T, hook *redirecting, kind string, to *registrationv1.ServiceReference) {
	services, err := aggregator.NewForConfig(c.admin)
	fatal(t, err)
	name := "v1." + kind + ".test"
	create(t, services.ApiregistrationV1().APIServices(), &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: apiregistrationv1.APIServiceSpec{
		Group: kind + ".test", Version: "v1", GroupPriorityMinimum: 1000, VersionPriority: 10, CABundle: hook.ca,
		Service: &apiregistrationv1.ServiceReference{Namespace: to.Namespace, Name: to.Name, Port: to.Port}}})
	t.Cleanup(func() {
		_ = services.ApiregistrationV1().APIServices().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	if kind == "aggregated" { // its path begins with /apis
		hook.asked(t, "apis", nil)
		return
	}
	eventually.Nil(t, kind, func() error {
		s, err := services.ApiregistrationV1().APIServices().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range s.Status.Conditions {
			if condition.Type == apiregistrationv1.Available {
				return namesOwn(condition.Message)
			}
		}
		return errors.New("no condition")
	})
}

// proxiesAsk tries what the API server passes requests on to: a kubelet, and by the proxies a node, a
// Pod and a Service.
func (c *cluster) proxiesAsk(t *testing.T) {
	// Proxies pass nothing on to loopback addresses.
	address := interfaceAddress(t)
	port := ownPort(t, address)
	node := create(t, c.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "egress"}, Status: corev1.NodeStatus{
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: port}}}})
	eventually.Nil(t, "the default service account", func() error {
		_, err := c.CoreV1().ServiceAccounts(egressNamespace).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	pod := create(t, c.CoreV1().Pods(egressNamespace), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "a", Image: "a"}}}})
	pod.Status.PodIP, pod.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
	if _, err := c.CoreV1().Pods(egressNamespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	create(t, c.CoreV1().Services(egressNamespace), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "a", Port: 80}}}})
	create(t, c.DiscoveryV1().EndpointSlices(egressNamespace), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "a", Labels: map[string]string{discoveryv1.LabelServiceName: "a"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: egressNamespace, Name: "a"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("a"), Port: &port}}})
	in := "/api/v1/namespaces/" + egressNamespace
	for what, path := range map[string]string{
		"log": in + "/pods/a/log", "node": fmt.Sprintf("/api/v1/nodes/egress:%d/proxy/", port),
		"pod": fmt.Sprintf("%s/pods/a:%d/proxy/", in, port), "service": in + "/services/a:a/proxy/",
	} {
		eventually.Nil(t, what, func() error {
			_, body := get(t, httpClient(t, c.admin), c.URL+path)
			return namesOwn(body)
		})
	}
	// A Node whose address is the API server's, which would be its own client there.
	server, err := url.Parse(c.URL)
	fatal(t, err)
	itself := create(t, c.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "itself"}, Status: corev1.NodeStatus{
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: server.Hostname()}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: portOf(t, c.URL)}}}})
	create(t, c.CoreV1().Pods(egressNamespace), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: itself.Name},
		Spec: corev1.PodSpec{NodeName: itself.Name, Containers: []corev1.Container{{Name: "a", Image: "a"}}}})
	eventually.Nil(t, "the server as a node", func() error {
		if _, body := get(t, httpClient(t, c.admin), c.URL+in+"/pods/itself/log"); !strings.Contains(body, egress.ErrItself.Error()) {
			return fmt.Errorf("got %q, want %q in it", body, egress.ErrItself)
		}
		return nil
	})
}
