package server_test

import (
	"context"
	"fmt"
	"log"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/karve-k8s/karve/server"
)

// A program runs an API server in its own process, uses it as soon as it is ready, and stops it. Its go.mod needs
// the replace lines of Karve's go.mod. Only one control plane of a process may have controllers.
func ExampleRun() {
	dir, err := os.MkdirTemp("", "control-plane-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	err = server.Run(ctx, server.Config{
		DataDir:           dir,
		DatastoreEndpoint: "memory://",
		DisableInsecure:   true, // the kernel chooses the secure port
		NoControllers:     true,
		DisableScheduler:  true,
		RequireReady:      true,
		Ready: func(ready server.Info) {
			go func() {
				defer stop()
				phase, err := phaseOf(ctx, ready.Kubeconfig, "kube-system")
				fmt.Println("kube-system:", phase, err)
			}()
		},
	})
	fmt.Println("stopped:", err)
	// Output:
	// kube-system: Active <nil>
	// stopped: <nil>
}

func phaseOf(ctx context.Context, kubeconfig, name string) (corev1.NamespacePhase, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return "", err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	namespace, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return namespace.Status.Phase, nil
}
