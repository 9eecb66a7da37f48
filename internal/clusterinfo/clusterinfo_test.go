package clusterinfo

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestRead(t *testing.T) {
	for text, want := range map[string]string{ // empty: an error
		"clusters: [{name: '', cluster: {server: 'https://a'}}]":                                                "https://a",
		"clusters: [{name: b, cluster: {server: 'https://b'}}, {name: '', cluster: {server: 'https://a'}}]":     "https://a",
		"clusters: [{name: b, cluster: {server: 'https://b'}}]\ncontexts: [{name: c, context: {cluster: b}}]\n": "",
		"clusters: [{name: b, cluster: {server: 'https://b'}}, {name: c, cluster: {server: 'https://c'}}]":      "",
		"clusters: []": "",
		"{":            "",
		"":             "",
		"current-context: c\nclusters: [{name: b, cluster: {server: 'https://b'}}]\ncontexts: [{name: c, context: {cluster: b}}]":                                             "https://b",
		"current-context: c\nclusters: [{name: b, cluster: {server: 'https://b'}}]\ncontexts: [{name: c, context: {cluster: other}}]":                                         "",
		"current-context: c\nclusters: [{name: b, cluster: {server: 'https://b'}}, {name: '', cluster: {server: 'https://a'}}]\ncontexts: [{name: c, context: {cluster: b}}]": "https://a",
	} {
		if text != "" && text != "{" {
			text = "apiVersion: v1\nkind: Config\n" + text
		}
		client := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"}, Data: map[string]string{"kubeconfig": text}})
		cluster, err := Read(t.Context(), client)
		switch {
		case want == "" && (!errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), "kube-public/cluster-info")):
			t.Errorf("%q: got %v, want an error that names the ConfigMap", text, err)
		case want != "" && err != nil:
			t.Errorf("%q: %v", text, err)
		case want != "" && cluster.Server != want:
			t.Errorf("%q: got %s, want %s", text, cluster.Server, want)
		}
	}
	if _, err := Read(t.Context(), fake.NewClientset()); !apierrors.IsNotFound(err) {
		t.Errorf("without the ConfigMap: got %v", err)
	}
}
