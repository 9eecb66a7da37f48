package simulate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/internal/ownports"
)

// podIP is the address of the Pod that answering simulates.
const podIP = "100.64.0.2"

// answering is a simulation of one node with a Pod at whose ports 8080 and 9090 processes answer, and a client
// that keeps its connections, as those of the API server do.
type answering struct {
	*simulation
	pod    *corev1.Pod
	client *http.Client
}

func newAnswering(t *testing.T, http2 bool) *answering {
	t.Helper()
	s, _ := newSimulation(t)
	a := &answering{simulation: s}
	var all []string
	for range 2 {
		process := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) }))
		process.EnableHTTP2, process.Config.ErrorLog = http2, log.New(io.Discard, "", 0)
		process.StartTLS()
		t.Cleanup(process.Close)
		at := process.Listener.Addr().String()
		all = append(all, at)
		s.Defaults.Targets = append(s.Defaults.Targets, netip.MustParseAddrPort(at))
	}
	a.pod = newPod(corev1.RestartPolicyAlways, Listen, fmt.Sprintf("8080=%s,9090=%s", all[0], all[1]))
	a.pod.Status.PodIP, a.pod.Status.PodIPs = podIP, []corev1.PodIP{{IP: podIP}}
	add(t, s.NamespaceInformer, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.pod.Namespace}})
	add(t, s.NodeInformer, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: Name(0), Labels: map[string]string{NodeLabel: ""}}})
	add(t, s.PodInformer, a.pod)
	k := &Kubelet{}
	k.open(s)
	t.Cleanup(k.close)
	a.takeUpPods()
	elsewhere := func(context.Context, string, string) (net.Conn, error) {
		return nil, fmt.Errorf("%w: this is nobody's address", ErrSimulated)
	}
	transport := &http.Transport{DialContext: k.Dial(elsewhere), TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: http2}
	t.Cleanup(transport.CloseIdleConnections)
	a.client = &http.Client{Transport: transport}
	return a
}

// get makes a request to an address and port.
func (a *answering) get(at string) (body string, _ error) {
	resp, err := a.client.Get("https://" + at + "/healthz")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// change replaces the Pod in the informer by a copy that do has changed, and handles the event.
func (a *answering) change(t *testing.T, do func(*corev1.Pod)) {
	t.Helper()
	was := a.pod
	a.pod = was.DeepCopy()
	do(a.pod)
	add(t, a.PodInformer, a.pod)
	a.podEvents().OnUpdate(was, a.pod)
	a.work(t)
}

// annotateNode sets the annotations of the node, and handles the event.
func (a *answering) annotateNode(t *testing.T, annotations map[string]string) {
	t.Helper()
	add(t, a.NodeInformer, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: Name(0), Labels: map[string]string{NodeLabel: ""}, Annotations: annotations}})
	a.syncNode(t.Context(), Name(0)) // its writes fail here
	a.work(t)
}

// annotateNamespace does that for the Namespace.
func (a *answering) annotateNamespace(t *testing.T, annotations map[string]string) {
	t.Helper()
	object, _, err := a.NamespaceInformer.GetStore().GetByKey(a.pod.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	is := object.(*corev1.Namespace).DeepCopy()
	is.Annotations = annotations
	add(t, a.NamespaceInformer, is)
	a.namespaceEvents().OnUpdate(object, is)
	a.work(t)
}

// work handles the Pods that are queued, as the workers do.
func (a *answering) work(t *testing.T) {
	t.Helper()
	for a.pods.Len() > 0 {
		key, _ := a.pods.Get()
		if _, err := a.syncPod(t.Context(), key); err != nil && !apierrors.IsConflict(err) {
			t.Error(err)
		}
		a.pods.Done(key)
	}
}

// A client that has a connection gets no answer over it when a new connection would be refused.
func TestConnectionsEndWithWhatAnswers(t *testing.T) {
	listen := func(value string) func(*testing.T, *answering) {
		return func(t *testing.T, a *answering) {
			a.change(t, func(p *corev1.Pod) { p.Annotations[Listen] = value })
		}
	}
	for name, c := range map[string]struct {
		change func(*testing.T, *answering)
		want   string // in the error of both ports
	}{
		"no annotation":    {listen(""), "nothing listens on port"},
		"wrong annotation": {listen("8080"), "PORT=ADDRESS:PORT"},
		"default of the Namespace removed": {func(t *testing.T, a *answering) {
			value := a.pod.Annotations[Listen]
			a.annotateNamespace(t, map[string]string{Listen: value})
			a.change(t, func(p *corev1.Pod) { delete(p.Annotations, Listen) })
			if n := a.connections.Len(); n != 2 {
				t.Errorf("the Namespace names the same processes: %d connections are open, want 2", n)
			}
			a.annotateNamespace(t, nil)
		}, "nothing listens on port"},
		"node down": {func(t *testing.T, a *answering) { a.annotateNode(t, map[string]string{NodeDown: "true"}) }, "is down"},
		"Pod over": {func(t *testing.T, a *answering) {
			a.change(t, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
		}, "does not run|nobody's"},
		"Pod deleted": {func(t *testing.T, a *answering) {
			if err := a.PodInformer.GetStore().Delete(a.pod); err != nil {
				t.Fatal(err)
			}
			a.podEvents().OnDelete(a.pod)
			a.work(t)
		}, "there is no pod|nobody's"},
		"another Pod of that name": {func(t *testing.T, a *answering) {
			a.change(t, func(p *corev1.Pod) { p.UID = "other" })
			if n := a.connections.Len(); n > 0 {
				t.Errorf("%d connections to the Pod before are open", n)
			}
			a.client.CloseIdleConnections() // an HTTP/2 client may use one of them once more before it notices
			a.change(t, func(p *corev1.Pod) { p.Annotations[Listen] = "" })
		}, "nothing listens on port"},
	} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, HTTP/2 %v", name, http2), func(t *testing.T) {
				a := newAnswering(t, http2)
				for _, port := range []string{"8080", "9090"} {
					if got, err := a.get(podIP + ":" + port); err != nil || http2 != (got == "HTTP/2.0") {
						t.Fatalf("before: got %q and %v", got, err)
					}
				}
				c.change(t, a)
				for _, port := range []string{"8080", "9090"} {
					if got, err := a.get(podIP + ":" + port); !errors.Is(err, ErrSimulated) || !regexp.MustCompile(c.want).MatchString(err.Error()) {
						t.Errorf("port %s: got %q and %v, want %s", port, got, err, c.want)
					}
				}
				if n := a.connections.Len(); n > 0 {
					t.Errorf("%d connections are held, want none", n)
				}
			})
		}
	}
}

// A node that is down does not answer over connections from before, with requests and with streams, and does
// afterwards.
func TestConnectionsToANodeEndWhenItIsDown(t *testing.T) {
	a := newAnswering(t, false)
	at := nodeAddress(0, false).String() + ":10250"
	if got, err := a.get(at); err != nil || got != "ok" {
		t.Fatalf("before: got %q and %v", got, err)
	}
	stream, err := a.client.Transport.(*http.Transport).DialContext(t.Context(), "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := stream.Read(make([]byte, 1))
		ended <- err
	}()
	a.annotateNode(t, map[string]string{NodeDown: "true"})
	if got, err := a.get(at); !errors.Is(err, ErrSimulated) || !strings.Contains(err.Error(), "is down") {
		t.Errorf("while it is down: got %q and %v", got, err)
	}
	if err := eventually.Receive(t, "the stream ends", ended); !errors.Is(err, ErrSimulated) || !strings.Contains(err.Error(), "is down") {
		t.Errorf("the stream: got %v", err)
	}
	if n := a.connections.Len(); n > 0 {
		t.Errorf("%d connections are still held", n)
	}
	a.annotateNode(t, nil)
	if got, err := a.get(at); err != nil || got != "ok" {
		t.Errorf("afterwards: got %q and %v", got, err)
	}
}

// A port of the server answers for no Pod, also if the server got it after the options were checked.
func TestOwnPortsAnswerForNoPod(t *testing.T) {
	a := newAnswering(t, false)
	defer ownports.Add(listenerAt{net.TCPAddrFromAddrPort(a.Defaults.Targets[0])})()
	if _, err := a.get(podIP + ":8080"); !errors.Is(err, ownports.ErrOwn) {
		t.Errorf("got %v, want %v", err, ownports.ErrOwn)
	}
	if _, err := a.get(podIP + ":9090"); err != nil {
		t.Errorf("another port: %v", err)
	}
}

type listenerAt struct{ at net.Addr }

func (listenerAt) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (listenerAt) Close() error              { return nil }
func (l listenerAt) Addr() net.Addr          { return l.at }
