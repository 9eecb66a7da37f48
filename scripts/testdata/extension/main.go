// Command extension is a Pod of scripts/nodes, behind an SSH tunnel:
//
//	:8080   plain HTTP
//	:8443   an admission webhook and an aggregated API
//
// test/machines/ssh.sh calls it as extension NODE SERVING-CERT SERVING-KEY.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: extension NODE SERVING-CERT SERVING-KEY")
		os.Exit(2)
	}
	node, cert, key := os.Args[1], os.Args[2], os.Args[3]
	go func() { log.Fatal(http.ListenAndServe(":8080", pod(node))) }()
	log.Fatal(http.ListenAndServeTLS(":8443", cert, key, extension(node)))
}

func pod(node string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "a Pod on %s", node) })
}

// extension denies every ConfigMap that says so, and serves the API group reach.karve.test.
func extension(node string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /review", func(w http.ResponseWriter, r *http.Request) {
		var review struct{ Request struct{ UID, Name string } }
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": %q, "allowed": %t, "status": {"message": "a Pod on %s says no"}}}`,
			review.Request.UID, review.Request.Name != "denied", node)
	})
	mux.HandleFunc("GET /apis/reach.karve.test/v1", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"apiVersion": "v1", "kind": "APIResourceList", "groupVersion": "reach.karve.test/v1",
			"resources": [{"name": "nodes-of-%s", "singularName": "", "namespaced": false, "kind": "Reach", "verbs": ["list"]}]}`, node)
	})
	return mux
}
