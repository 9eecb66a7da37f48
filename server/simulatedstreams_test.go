package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/transport/websocket"
	"k8s.io/client-go/util/exec"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/simulate"
)

// annotateNamespace sets annotations, given as alternating names and values.
func (c *cluster) annotateNamespace(t *testing.T, ns string, annotations ...string) {
	t.Helper()
	set := map[string]string{}
	for i := 0; i < len(annotations); i += 2 {
		set[annotations[i]] = annotations[i+1]
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": set}})
	fatal(t, err)
	if _, err := c.CoreV1().Namespaces().Patch(t.Context(), ns, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A Namespace's annotations are defaults for its Pods, also for those that exist. The server has
// defaults for all.
func testSimulatedDefaults(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	pods := c.CoreV1().Pods(ns)
	create(t, pods, simulated("before"))
	c.wantPod(t, ns, "before", "is ready", isReady)
	c.annotateNamespace(t, ns, simulate.NotReadyAfter, "1ms")
	notReady := func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning && !isReady(p) }
	c.wantPod(t, ns, "before", "is not ready", notReady)
	create(t, pods, simulated("after"))
	create(t, pods, simulated("other", simulate.NotReadyAfter, ""))
	c.wantPod(t, ns, "after", "runs and is not ready", notReady)
	c.wantPod(t, ns, "other", "is ready", isReady)

	eventually.Nil(t, "the memory that a Pod uses", func() error {
		raw, err := c.RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1/namespaces/" + ns + "/pods/other").DoRaw(t.Context())
		if err == nil && !strings.Contains(string(raw), `"memory":"11Mi"`) {
			err = fmt.Errorf("got %s", raw)
		}
		return err
	})

	c.annotateNamespace(t, ns, simulate.Prefix+"runfor", "1s")
	create(t, pods, simulated("misspelt"))
	c.wantPod(t, ns, "misspelt", "says what is wrong", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses
		return len(s) == 1 && s[0].State.Waiting != nil && strings.Contains(s[0].State.Waiting.Message, "annotation simulate.karve/runfor of namespace "+ns)
	})
}

// at returns the request for a subresource of a Pod.
func (c *cluster) at(ns, pod, what string, options any) *rest.Request {
	r := c.CoreV1().RESTClient().Get().Namespace(ns).Resource("pods").Name(pod).SubResource(what)
	switch o := options.(type) {
	case *corev1.PodExecOptions:
		r.VersionedParams(o, scheme.ParameterCodec)
	case *corev1.PodAttachOptions:
		r.VersionedParams(o, scheme.ParameterCodec)
	case *corev1.PodPortForwardOptions:
		r.VersionedParams(o, scheme.ParameterCodec)
	}
	return r
}

// executors returns a client of each protocol for exec and attach.
func (c *cluster) executors(t *testing.T, r *rest.Request) map[string]remotecommand.Executor {
	t.Helper()
	all := map[string]remotecommand.Executor{}
	var err error
	if all["SPDY"], err = remotecommand.NewSPDYExecutor(c.admin, http.MethodPost, r.URL()); err != nil {
		t.Fatal(err)
	}
	for _, protocol := range []string{"v5.channel.k8s.io", "v4.channel.k8s.io"} {
		if all[protocol], err = remotecommand.NewWebSocketExecutorForProtocols(c.admin, http.MethodGet, r.URL().String(), protocol); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// frames sends messages over a WebSocket to a Pod, as clients in other languages do, and returns what
// came back on each channel until the connection ended.
func (c *cluster) frames(t *testing.T, r *rest.Request, send ...[]byte) map[byte]string {
	t.Helper()
	transport, holder, err := websocket.RoundTripperFor(c.admin)
	fatal(t, err)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.URL().String(), nil)
	fatal(t, err)
	conn, err := websocket.Negotiate(transport, holder, request, "v4.channel.k8s.io")
	if err != nil {
		t.Fatalf("the upgrade: %v", err)
	}
	defer conn.Close()
	fatal(t, conn.SetReadDeadline(time.Now().Add(patience)))
	for _, message := range send {
		fatal(t, conn.WriteMessage(2, message))
	}
	got := map[byte]string{}
	for {
		_, message, err := conn.ReadMessage()
		if err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				t.Errorf("the connection did not end: got %q", got)
			}
			return got
		}
		if len(message) > 0 {
			got[message[0]] += string(message[1:])
		}
	}
}

func testSimulatedExec(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	create(t, c.CoreV1().Pods(ns), simulated("web"))
	c.wantPod(t, ns, "web", "is ready", isReady)
	reason := "simulated: container main of Pod " + ns + "/web runs no program, so there is nothing to exec in it. The annotation simulate.karve/exec gives commands an answer"
	options := &corev1.PodExecOptions{Command: []string{"ls"}, Stdin: true, Stdout: true, Stderr: true}
	for protocol, executor := range c.executors(t, c.at(ns, "web", "exec", options)) {
		var out, stderr bytes.Buffer
		err := executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader("x"), Stdout: &out, Stderr: &stderr})
		var failed exec.CodeExitError
		if !errors.As(err, &failed) || failed.Code != 126 || stderr.String() != reason+"\n" || out.Len() > 0 {
			t.Errorf("%s: got %q, %q and %v, want the reason on stderr and exit code 126", protocol, out.String(), stderr.String(), err)
		}
	}
	// A client in another language shows what is on the error channel, or on stdout if it wants no more.
	for _, stderr := range []bool{true, false} {
		got := c.frames(t, c.at(ns, "web", "exec", &corev1.PodExecOptions{Command: []string{"ls"}, Stdout: true, Stderr: stderr}))
		said := got[1]
		if stderr {
			said = got[2]
		}
		var status metav1.Status
		if err := json.Unmarshal([]byte(got[3]), &status); err != nil || status.Status != metav1.StatusFailure || !strings.Contains(status.Message, reason) ||
			len(status.Details.Causes) != 1 || status.Details.Causes[0].Message != "126" || said != reason+"\n" {
			t.Errorf("by channels, with a stderr %v: got %q", stderr, got)
		}
	}
}

// An attached client's streams end with the container.
func testSimulatedAttach(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	p := simulated("once", simulate.RunFor, "4s")
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	create(t, c.CoreV1().Pods(ns), p)
	c.wantPod(t, ns, "once", "is ready", isReady)
	ended := make(chan error)
	all := c.executors(t, c.at(ns, "once", "attach", &corev1.PodAttachOptions{Stdin: true, Stdout: true, Stderr: true}))
	for protocol, executor := range all {
		go func() {
			var stderr bytes.Buffer
			in, typing := io.Pipe() // which never ends
			defer typing.Close()
			err := executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: io.Discard, Stderr: &stderr})
			if want := "simulated: container main of Pod " + ns + "/once runs no program"; err == nil && !strings.HasPrefix(stderr.String(), want) {
				err = fmt.Errorf("stderr: got %q, want %q…", stderr.String(), want)
			}
			if err != nil {
				err = fmt.Errorf("%s: %w", protocol, err)
			}
			ended <- err
		}()
	}
	for range all {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	c.wantPod(t, ns, "once", "has succeeded", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })

	// These are attached until the server stops, which finds no goroutine of theirs afterwards.
	create(t, c.CoreV1().Pods(ns), simulated("always"))
	c.wantPod(t, ns, "always", "is ready", isReady)
	for protocol, executor := range c.executors(t, c.at(ns, "always", "attach", &corev1.PodAttachOptions{Stdout: true})) {
		out, printing := io.Pipe()
		go func() {
			err := executor.StreamWithContext(context.Background(), remotecommand.StreamOptions{Stdout: printing})
			printing.CloseWithError(fmt.Errorf("ended: %w", errors.Join(io.ErrUnexpectedEOF, err)))
		}()
		r := bufio.NewReader(out)
		if line, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "simulated: ") {
			t.Errorf("%s: got %q and %v, want a line that says simulated", protocol, line, err)
		}
		go io.Copy(io.Discard, r)
	}
}

// portFrames returns the messages of a port-forward for one port, without the port at the begin of
// each channel.
func portFrames(t *testing.T, got map[byte]string, port uint16) map[byte]string {
	t.Helper()
	for channel, said := range got {
		if len(said) < 2 || binary.LittleEndian.Uint16([]byte(said)) != port {
			t.Errorf("channel %d begins with %q, want the port %d", channel, said, port)
			continue
		}
		got[channel] = said[2:]
	}
	return got
}

// forward calls do with a connection to a port of a Pod, by SPDY.
func (c *cluster) forward(t *testing.T, ns, pod string, port int, do func(net.Conn)) error {
	t.Helper()
	transport, upgrader, err := spdy.RoundTripperFor(c.admin)
	fatal(t, err)
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, c.at(ns, pod, "portforward", nil).URL())
	stop, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{fmt.Sprint("0:", port)}, stop, ready, io.Discard, io.Discard)
	fatal(t, err)
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case err := <-ended:
		return err
	case <-ready:
	}
	defer func() {
		close(stop)
		<-ended
	}()
	ports, err := forwarder.GetPorts()
	if err != nil {
		return err
	}
	conn, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", ports[0].Local))
	if err != nil {
		return err
	}
	defer conn.Close()
	do(conn)
	return nil
}

// hostListeners are ports of this machine at which a test's processes answer for Pods.
type hostListeners struct{ tls, echo net.Listener }

func listenOnHost(t *testing.T) *hostListeners {
	t.Helper()
	var h hostListeners
	for _, l := range []*net.Listener{&h.tls, &h.echo} {
		var err error
		if *l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*l).Close() })
	}
	go func() {
		for {
			conn, err := h.echo.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				io.Copy(conn, conn)
			}()
		}
	}()
	return &h
}

// A process of this machine answers for the Pods of a Deployment that knows nothing of it: as a
// webhook behind a Service, through the proxies of Pods and Services, and by port-forward.
func (h *hostListeners) testListen(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	listen := fmt.Sprintf("10250=%s,7=%s", h.tls.Addr(), h.echo.Addr())
	c.annotateNamespace(t, ns, simulate.Listen, listen)
	mux := http.NewServeMux()
	mux.HandleFunc("/hello", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "from the host") })
	mux.Handle("/review", review(t, func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		if r.Name == "forbidden" {
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "the host says no"}}
		}
		return &admissionv1.AdmissionResponse{Allowed: true}
	}))
	_, ca := serveTLSAt(t, h.tls, []string{"web." + ns + ".svc"}, nil, mux)

	create(t, c.AppsV1().Deployments(ns), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{Selector: web, Template: template()}})
	create(t, c.CoreV1().Services(ns), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
		Selector: web.MatchLabels, Ports: []corev1.ServicePort{{Port: 443, TargetPort: intstr.FromInt32(10250)}},
	}})
	pod := c.wantPods(t, ns, 1)[0].Name
	c.wantPod(t, ns, pod, "is ready", isReady)
	c.validate(t, ns, ns, registrationv1.WebhookClientConfig{CABundle: ca, Service: &registrationv1.ServiceReference{Namespace: ns, Name: "web", Path: ptr.To("/review")}})
	refusedSoon(t, c, ns, "the host says no")
	proxies := map[string]rest.ResponseWrapper{
		"Pod":     c.CoreV1().Pods(ns).ProxyGet("https", pod, "10250", "/hello", nil),
		"Service": c.CoreV1().Services(ns).ProxyGet("https", "web", "443", "/hello", nil),
	}
	for what, get := range proxies {
		if body, err := get.DoRaw(t.Context()); err != nil || string(body) != "from the host" {
			t.Errorf("the proxy of the %s: got %q and %v", what, body, err)
		}
	}

	err := c.forward(t, ns, pod, 7, func(conn net.Conn) {
		back := make([]byte, 5)
		conn.SetDeadline(time.Now().Add(patience))
		io.WriteString(conn, "hello")
		if _, err := io.ReadFull(conn, back); err != nil || string(back) != "hello" {
			t.Errorf("port-forward by SPDY: got %q and %v back", back, err)
		}
	})
	if err != nil {
		t.Errorf("port-forward by SPDY: %v", err)
	}
	r := c.at(ns, pod, "portforward", &corev1.PodPortForwardOptions{Ports: []int32{81}})
	if got := portFrames(t, c.frames(t, r), 81); !strings.Contains(got[1], "nothing listens on port 81") {
		t.Errorf("another port, by WebSocket: got %q", got)
	}
	h.echo.Close() // afterwards only connections that exist answer
	if got := portFrames(t, c.frames(t, c.at(ns, pod, "portforward", &corev1.PodPortForwardOptions{Ports: []int32{7}})), 7); !strings.Contains(got[1], "simulated: nothing answers for port 7") {
		t.Errorf("a port at which no process listens: got %q", got)
	}
}

// A Pod cannot make the server connect to what the server's own options do not name.
func testSimulatedListenElsewhere(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	create(t, c.CoreV1().Pods(ns), simulated("web", simulate.Listen, "80=127.0.0.1:2379"))
	c.wantPod(t, ns, "web", "waits", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses
		return len(s) == 1 && s[0].State.Waiting != nil && strings.Contains(s[0].State.Waiting.Message, "the server allows no connection to 127.0.0.1:2379: start it with --simulate-listen 127.0.0.1:2379")
	})
	// The annotation of a Pod that runs is checked with each connection.
	create(t, c.CoreV1().Pods(ns), simulated("later"))
	c.wantPod(t, ns, "later", "is ready", isReady)
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"80=127.0.0.1:2379"}}}`, simulate.Listen)
	amend(t, c.CoreV1().Pods(ns), "later", types.MergePatchType, patch)
	eventually.Nil(t, "the proxy refuses the new address", func() error {
		body, err := c.CoreV1().Pods(ns).ProxyGet("http", "later", "80", "/", nil).DoRaw(t.Context())
		if err == nil || !strings.Contains(string(body), "the server allows no connection to 127.0.0.1:2379") {
			return fmt.Errorf("got %q and %v", body, err)
		}
		return nil
	})
}
