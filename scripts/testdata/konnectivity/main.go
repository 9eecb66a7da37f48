// Command konnectivity stands for a kubelet and its Pods in scripts/konnectivity-test. Nothing
// here runs containers: exec runs its command on this machine, and every Pod's log is the same.
// What the API server sends to a node, a Pod or a Service is served as they would serve it:
//
//	:10250  the kubelet: healthz, containerLogs, exec, portForward; for the API server's certificate only
//	:8080   a Pod that serves plain HTTP
//	:8443   a Pod that is an admission webhook and an aggregated API
//
// scripts/konnectivity-test calls it as konnectivity NODE CLIENT-CA SERVING-CERT SERVING-KEY.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// portForwardProtocol is the kubelet's subprotocol for port-forward over SPDY.
const portForwardProtocol = "portforward.k8s.io"

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: konnectivity NODE CLIENT-CA SERVING-CERT SERVING-KEY")
		os.Exit(2)
	}
	node, clientCA, cert, key := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	pem, err := os.ReadFile(clientCA)
	if err != nil {
		log.Fatal(err)
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(pem) {
		log.Fatalf("%s has no certificate", clientCA)
	}
	kubelet := &http.Server{Addr: ":10250", Handler: kubeletHandler(node),
		TLSConfig: &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}}
	go func() { log.Fatal(http.ListenAndServe(":8080", pod(node))) }()
	go func() { log.Fatal(http.ListenAndServeTLS(":8443", cert, key, extension(node))) }()
	log.Fatal(kubelet.ListenAndServeTLS(cert, key))
}

func kubeletHandler(node string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "ok from %s", node) })
	mux.HandleFunc("/containerLogs/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "log of %s on %s\n", r.PathValue("pod"), node)
		if r.FormValue("follow") == "" {
			return
		}
		for n := 1; ; n++ {
			fmt.Fprintf(w, "line %d\n", n)
			if err := http.NewResponseController(w).Flush(); err != nil {
				return
			}
			select {
			case <-r.Context().Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", serveExec)
	mux.HandleFunc("/portForward/{namespace}/{pod}", servePortForward)
	return mux
}

// A stream is one that the client created, and closed once the server has agreed to it.
type stream struct {
	httpstream.Stream
	agreed <-chan struct{}
}

// upgrade agrees to one of protocols. Streams that the client creates come through the channel.
func upgrade(w http.ResponseWriter, r *http.Request, protocols ...string) (httpstream.Connection, <-chan stream) {
	if _, err := httpstream.Handshake(r, w, protocols); err != nil {
		log.Print(err)
		return nil, nil
	}
	streams := make(chan stream, 100)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, agreed <-chan struct{}) error {
		streams <- stream{s, agreed}
		return nil
	})
	return conn, streams
}

// serveExec runs the command on this machine, and reports its exit code as the kubelet does.
func serveExec(w http.ResponseWriter, r *http.Request) {
	wanted := []string{corev1.StreamTypeError}
	for param, kind := range map[string]string{
		corev1.ExecStdinParam: corev1.StreamTypeStdin, corev1.ExecStdoutParam: corev1.StreamTypeStdout, corev1.ExecStderrParam: corev1.StreamTypeStderr} {
		if r.FormValue(param) == "1" {
			wanted = append(wanted, kind)
		}
	}
	conn, streams := upgrade(w, r, remotecommand.StreamProtocolV5Name, remotecommand.StreamProtocolV4Name)
	if conn == nil {
		return
	}
	defer conn.Close()
	got := map[string]io.ReadWriteCloser{}
	for range wanted {
		select {
		case s := <-streams:
			<-s.agreed
			got[s.Headers().Get(corev1.StreamType)] = s
		case <-conn.CloseChan():
			return
		}
	}
	status := metav1.Status{Status: metav1.StatusSuccess}
	if err := run(r.Form["command"], got); err != nil {
		status = metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			status.Reason = remotecommand.NonZeroExitCodeReason
			status.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{
				{Type: remotecommand.ExitCodeCauseType, Message: fmt.Sprint(exit.ExitCode())}}}
		}
	}
	if err := json.NewEncoder(got[corev1.StreamTypeError]).Encode(status); err != nil {
		log.Print(err)
	}
	for _, s := range got {
		s.Close()
	}
	<-conn.CloseChan() // the client has read everything
}

func run(command []string, streams map[string]io.ReadWriteCloser) error {
	cmd := exec.Command(command[0], command[1:]...)
	if in, ok := streams[corev1.StreamTypeStdin]; ok {
		cmd.Stdin = in
	}
	if out, ok := streams[corev1.StreamTypeStdout]; ok {
		cmd.Stdout = out
	}
	if out, ok := streams[corev1.StreamTypeStderr]; ok {
		cmd.Stderr = out
	}
	return cmd.Run()
}

// servePortForward connects each data stream with its port on this machine.
func servePortForward(w http.ResponseWriter, r *http.Request) {
	conn, streams := upgrade(w, r, portForwardProtocol)
	if conn == nil {
		return
	}
	defer conn.Close()
	failures := map[string]io.WriteCloser{} // by request
	for {
		select {
		case s := <-streams:
			<-s.agreed
			request := s.Headers().Get(corev1.PortForwardRequestIDHeader)
			if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeError {
				failures[request] = s // the client creates it before the data stream
				continue
			}
			go forward(s, net.JoinHostPort("127.0.0.1", s.Headers().Get(corev1.PortHeader)), failures[request])
		case <-conn.CloseChan():
			return
		}
	}
}

func forward(data io.ReadWriteCloser, to string, failure io.WriteCloser) {
	defer failure.Close()
	defer data.Close()
	onward, err := net.Dial("tcp", to)
	if err != nil {
		fmt.Fprint(failure, err)
		return
	}
	defer onward.Close()
	go func() {
		io.Copy(onward, data)
		onward.(*net.TCPConn).CloseWrite()
	}()
	io.Copy(data, onward)
}

func pod(node string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "a Pod on %s", node) })
}

// extension denies every ConfigMap that says so, and serves the API group reach.karve.test.
func extension(node string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /review", func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if review.Request.Name == "denied" {
			review.Response.Allowed = false
			review.Response.Result = &metav1.Status{Message: "a Pod on " + node + " says no"}
		}
		review.Request = nil
		reply(w, review)
	})
	mux.HandleFunc("GET /apis/reach.karve.test/v1", func(w http.ResponseWriter, r *http.Request) {
		reply(w, metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: "reach.karve.test/v1", APIResources: []metav1.APIResource{{Name: "nodes-of-" + node, Kind: "Reach", Verbs: metav1.Verbs{"list"}}}})
	})
	return mux
}

func reply(w http.ResponseWriter, object any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(object); err != nil {
		log.Print(err)
	}
}
