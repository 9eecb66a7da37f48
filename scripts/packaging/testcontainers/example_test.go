package testcontainers_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"
)

const karveImage = "ghcr.io/karve-k8s/karve:v1.37.2-karve.1"

// startKarve returns the kubeconfig of a cluster that ends with the test.
func startKarve(t *testing.T) []byte {
	karve, err := testcontainers.Run(t.Context(), karveImage,
		testcontainers.WithExposedPorts("6443/tcp"),
		testcontainers.WithWaitStrategy(wait.ForExec([]string{"karve", "status"}).WithStartupTimeout(time.Minute)))
	testcontainers.CleanupContainer(t, karve)
	if err != nil {
		t.Fatal(err)
	}
	endpoint, err := karve.PortEndpoint(t.Context(), "6443/tcp", "")
	if err != nil {
		t.Fatal(err)
	}
	code, out, err := karve.Exec(t.Context(), []string{"karve", "kubeconfig", "--server", endpoint})
	if err != nil {
		t.Fatal(err)
	}
	// Warnings are no part of the kubeconfig.
	var kubeconfig, messages bytes.Buffer
	if _, err := stdcopy.StdCopy(&kubeconfig, &messages, out); err != nil || code != 0 {
		t.Fatalf("karve kubeconfig: exit code %d, %v, %s", code, err, &messages)
	}
	return kubeconfig.Bytes()
}
