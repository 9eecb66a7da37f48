package replacements

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// serverNames is the ConfigMap in kube-system in which the servers that share a datastore keep the names
// at which clients may look for them. The approver of kubelets' serving certificates runs in one of the servers,
// and knows the options and certificates of that one only. Names of servers that are gone remain.
const serverNames = "karve-server-names"

// PublishNames adds names and addresses of a server to those of all servers. It writes nothing if they are
// there.
func PublishNames(ctx context.Context, client kubernetes.Interface, names []string) error {
	maps := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	found, err := maps.Get(ctx, serverNames, metav1.GetOptions{})
	missing := err != nil
	if missing && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read ConfigMap %s: %w", serverNames, err)
	}
	added := map[string]string{}
	for _, name := range names {
		// A key of a ConfigMap cannot be an address or a wildcard.
		hash := sha256.Sum256([]byte(name))
		if key := hex.EncodeToString(hash[:8]); missing || found.Data[key] != name {
			added[key] = name
		}
	}
	switch {
	case len(added) == 0:
		return nil
	case missing:
		_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: serverNames}, Data: added}, metav1.CreateOptions{})
	default:
		var patch []byte
		if patch, err = json.Marshal(map[string]any{"data": added}); err == nil {
			_, err = maps.Patch(ctx, serverNames, types.MergePatchType, patch, metav1.PatchOptions{})
		}
	}
	if err != nil { // another server may have made it meanwhile: the next call adds to it
		return fmt.Errorf("write ConfigMap %s: %w", serverNames, err)
	}
	return nil
}

// publishedNames returns the names and addresses of all servers.
func publishedNames(ctx context.Context, client kubernetes.Interface) (names []string, err error) {
	found, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, serverNames, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil // a single server writes none
	} else if err != nil {
		return nil, fmt.Errorf("read ConfigMap %s: %w", serverNames, err)
	}
	for _, name := range found.Data {
		names = append(names, name)
	}
	return names, nil
}
