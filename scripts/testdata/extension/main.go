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

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
