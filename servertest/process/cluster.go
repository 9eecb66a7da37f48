package process

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// patience is how long something that the cluster does by itself may take.
const patience = time.Minute

// Cluster is what a test does with a cluster, however the cluster was started.
type Cluster struct {
	config      *rest.Config
	kubeconfig  string
	client      kubernetes.Interface
	dynamic     dynamic.Interface
	controllers bool
}

// connect returns the cluster of a kubeconfig. Without controllers, nothing makes a
// namespace's service accounts, and Namespace does not wait for them.
func connect(kubeconfig string, controllers bool) (*Cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	c := &Cluster{config: config, kubeconfig: kubeconfig, controllers: controllers}
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	c.dynamic, err = dynamic.NewForConfig(config)
	return c, err
}

// Config returns the administrator's client configuration, without a rate limit. It is a
// copy, and you may change it.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Kubeconfig returns the path of the administrator's kubeconfig, for programs.
func (c *Cluster) Kubeconfig() string { return c.kubeconfig }

// Client returns a client for the built-in kinds, as administrator.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// Dynamic returns a client for all kinds, as administrator.
func (c *Cluster) Dynamic() dynamic.Interface { return c.dynamic }

// Namespace makes a namespace for the test, and returns its name when Pods can be made in
// it. It is deleted at the end of the test, which does not wait for that.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	ns, err := c.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: namePrefix(t)}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("make a namespace: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		err := c.client.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			t.Errorf("delete namespace %s: %v", ns.Name, err)
		}
	})
	if c.controllers {
		c.Eventually(t, "the default service account of "+ns.Name, func() error {
			_, err := c.client.CoreV1().ServiceAccounts(ns.Name).Get(t.Context(), "default", metav1.GetOptions{})
			return err
		})
	}
	return ns.Name
}

// namePrefix makes a valid name from the test's name.
func namePrefix(t testing.TB) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, t.Name())
	name = strings.Trim(name[:min(len(name), 50)], "-")
	return name + "-"
}

var crds = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// CRDs makes or updates the CustomResourceDefinitions in YAML or JSON files, and returns
// when their kinds are served. A path is a file, or a directory whose .yaml, .yml and .json
// files are read. Other kinds in the files are ignored.
func (c *Cluster) CRDs(t testing.TB, paths ...string) {
	t.Helper()
	all, err := readManifests(paths, "CustomResourceDefinition")
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range all {
		c.put(t, crds, crd)
	}
	for _, crd := range all {
		c.Eventually(t, crd.GetName()+" is served", func() error { return c.served(t.Context(), crd.GetName()) })
	}
}

// served returns nil when all served versions of a CRD answer.
func (c *Cluster) served(ctx context.Context, name string) error {
	crd, err := c.dynamic.Resource(crds).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	established := slices.ContainsFunc(conditions, func(one any) bool {
		condition, _ := one.(map[string]any)
		return condition["type"] == "Established" && condition["status"] == "True"
	})
	if !established {
		return fmt.Errorf("not established: %v", conditions)
	}
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, one := range versions {
		version, _ := one.(map[string]any)
		if version["served"] != true {
			continue
		}
		gvr := schema.GroupVersionResource{Group: group, Version: fmt.Sprint(version["name"]), Resource: plural}
		if _, err := c.dynamic.Resource(gvr).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
			return err
		}
	}
	return nil
}

// put makes an object, or updates the existing one.
func (c *Cluster) put(t testing.TB, gvr schema.GroupVersionResource, object *unstructured.Unstructured) {
	t.Helper()
	client := c.dynamic.Resource(gvr)
	_, err := client.Create(t.Context(), object, metav1.CreateOptions{})
	for apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		var there *unstructured.Unstructured
		if there, err = client.Get(t.Context(), object.GetName(), metav1.GetOptions{}); err == nil {
			object.SetResourceVersion(there.GetResourceVersion())
			_, err = client.Update(t.Context(), object, metav1.UpdateOptions{})
		}
	}
	if err != nil {
		t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
	}
}

// Webhooks serves handler in the test's process until the test ends. It returns how the
// cluster reaches it, for the clientConfig of a webhook. Only the path is missing there.
//
// It makes or updates the ValidatingWebhookConfigurations and MutatingWebhookConfigurations
// in manifests (files or directories, as in [Cluster.CRDs]). Instead of the Service that
// they name, they call handler, with the path that they name. They are deleted at the end
// of the test.
func (c *Cluster) Webhooks(t testing.TB, handler http.Handler, manifests ...string) admissionv1.WebhookClientConfig {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	reach := admissionv1.WebhookClientConfig{URL: &server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}
	if len(manifests) == 0 {
		return reach
	}
	all, err := readManifests(manifests, "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
	if err != nil {
		t.Fatal(err)
	}
	for _, configuration := range all {
		gvr := schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: strings.ToLower(configuration.GetKind()) + "s"}
		webhooks, _, err := unstructured.NestedSlice(configuration.Object, "webhooks")
		if err != nil {
			t.Fatalf("%s %s: %v", configuration.GetKind(), configuration.GetName(), err)
		}
		for _, one := range webhooks {
			webhook, _ := one.(map[string]any)
			path, _, _ := unstructured.NestedString(webhook, "clientConfig", "service", "path")
			webhook["clientConfig"] = map[string]any{"url": server.URL + path, "caBundle": base64.StdEncoding.EncodeToString(reach.CABundle)}
		}
		if err := unstructured.SetNestedSlice(configuration.Object, webhooks, "webhooks"); err != nil {
			t.Fatal(err)
		}
		c.put(t, gvr, configuration)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			err := c.dynamic.Resource(gvr).Delete(ctx, configuration.GetName(), metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				t.Errorf("delete %s %s: %v", configuration.GetKind(), configuration.GetName(), err)
			}
		})
	}
	return reach
}

// readManifests reads the objects of some kinds. It is an error if there are none.
func readManifests(paths []string, kinds ...string) ([]*unstructured.Unstructured, error) {
	var files []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) && !e.IsDir() {
				files = append(files, filepath.Join(path, e.Name()))
			}
		}
	}
	var all []*unstructured.Unstructured
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
		for {
			object := &unstructured.Unstructured{}
			err := documents.Decode(&object.Object)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			if slices.Contains(kinds, object.GetKind()) {
				all = append(all, object)
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: no %s in it", strings.Join(paths, ", "), strings.Join(kinds, " and no "))
	}
	return all, nil
}

// Eventually waits until try returns nil, as it should once the cluster has done its work.
// After a minute, it fails the test with try's last error.
func (c *Cluster) Eventually(t testing.TB, what string, try func() error) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) || t.Context().Err() != nil {
			t.Fatalf("%s: not within %v: %v", what, patience, err)
		}
	}
}
