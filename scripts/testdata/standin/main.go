// Command standin is what scripts/ssh-test runs on a node in the place of a kubelet and of Pods:
//
//	standin serve KUBELET WEB WEBHOOK CAFILE   listens at the three addresses, and writes the webhook's CA
//	standin dial ADDRESS                       exits with 0 if a TCP connection is made within a second
//
// The kubelet answers /healthz, and /containerLogs with a line every tenth of a second while it is
// followed. The web server says hello, and does the same at /stream. The webhook denies objects that are called denied.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"time"
)

func main() {
	switch {
	case len(os.Args) == 3 && os.Args[1] == "dial":
		conn, err := net.DialTimeout("tcp", os.Args[2], time.Second)
		if err != nil {
			log.Fatal(err)
		}
		conn.Close()
	case len(os.Args) == 6 && os.Args[1] == "serve":
		log.Fatal(serve(os.Args[2], os.Args[3], os.Args[4], os.Args[5]))
	default:
		log.Fatal("usage: standin serve KUBELET WEB WEBHOOK CAFILE | standin dial ADDRESS")
	}
}

func serve(kubelet, web, webhook, caFile string) error {
	pair, err := certificate("webhook.default.svc")
	if err != nil {
		return err
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})
	if err := os.WriteFile(caFile+".new", ca, 0o644); err != nil {
		return err
	}
	if err := os.Rename(caFile+".new", caFile); err != nil {
		return err
	}
	failed := make(chan error)
	listen := func(address string, withTLS bool, handler http.HandlerFunc) {
		s := &http.Server{Addr: address, Handler: handler, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}}}
		if withTLS {
			failed <- s.ListenAndServeTLS("", "")
		} else {
			failed <- s.ListenAndServe()
		}
	}
	go listen(kubelet, true, answerAsKubelet)
	go listen(web, false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stream" {
			stream(w, r, 0)
			return
		}
		fmt.Fprintln(w, "hello from", web)
	})
	go listen(webhook, true, review)
	return <-failed
}

// certificate is its own authority.
func certificate(name string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), DNSNames: []string{name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

func answerAsKubelet(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/healthz" {
		fmt.Fprintln(w, "ok")
		return
	}
	lines := 3 // /containerLogs/NAMESPACE/POD/CONTAINER
	if r.URL.Query().Get("follow") == "true" {
		lines = 0
	}
	stream(w, r, lines)
}

// stream writes a line every tenth of a second: some lines, or with 0 until the client leaves.
func stream(w http.ResponseWriter, r *http.Request, lines int) {
	for i := 1; ; i++ {
		if _, err := fmt.Fprintf(w, "line %d of %s\n", i, r.URL.Path); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush()
		if i == lines {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// review answers an AdmissionReview, of which it needs only these fields.
func review(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Request struct {
			UID  string `json:"uid"`
			Name string `json:"name"`
		} `json:"request"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	response := map[string]any{"uid": in.Request.UID, "allowed": in.Request.Name != "denied"}
	if in.Request.Name == "denied" {
		response["status"] = map[string]any{"message": "the webhook on the node says no"}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}
