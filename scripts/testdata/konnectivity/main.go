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
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/utils/exec"
)

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

// The kubelet's limits of a stream.
const (
	streamIdle     = 4 * time.Hour
	streamCreation = 30 * time.Second
)

// machine runs commands, and reaches ports, on this machine in the place of a container.
type machine struct{}

func serveExec(w http.ResponseWriter, r *http.Request) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	protocols := []string{remotecommand.StreamProtocolV4Name} // with the exit code
	remotecommand.ServeExec(w, r, machine{}, r.PathValue("pod"), "", r.PathValue("container"), r.URL.Query()["command"], options, streamIdle, streamCreation, protocols)
}

// ExecInContainer implements remotecommand.Executor.
func (machine) ExecInContainer(ctx context.Context, _, _, _ string, command []string, in io.Reader, out, stderr io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	cmd := exec.New().CommandContext(ctx, command[0], command[1:]...)
	if in != nil {
		cmd.SetStdin(in)
	}
	if out != nil {
		cmd.SetStdout(out)
	}
	if stderr != nil {
		cmd.SetStderr(stderr)
	}
	return cmd.Run()
}

func servePortForward(w http.ResponseWriter, r *http.Request) {
	options, err := portforward.NewV4Options(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	portforward.ServePortForward(w, r, machine{}, r.PathValue("pod"), "", options, streamIdle, streamCreation, portforward.SupportedProtocols)
}

// PortForward implements portforward.PortForwarder.
func (machine) PortForward(_ context.Context, _, _ string, port int32, data io.ReadWriteCloser) error {
	onward, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	defer onward.Close()
	go func() {
		io.Copy(onward, data)
		onward.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(data, onward)
	return err
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
