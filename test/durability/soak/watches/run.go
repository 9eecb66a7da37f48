package watches

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/test/durability"
	"github.com/karve-k8s/karve/test/durability/soak/setup"
)

// stopLimit bounds the stop of the server.
const stopLimit = 2 * time.Minute

// Run is the command soak watches.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	log, remove, err := o.Open()
	if err != nil {
		return err
	}
	defer remove()
	server := &durability.Server{Binary: o.Binary, DataDir: o.DataDir(), Log: log, Args: []string{
		"--kube-apiserver-arg", "etcd-compaction-interval=" + o.Compact.String()}}
	api, err := server.Start(ctx)
	if err != nil {
		return err
	}
	w, writes, err := hold(ctx, o, server, api.URL)
	if err != nil {
		return errors.Join(err, server.Kill())
	}
	if err := server.Stop(stopLimit); err != nil {
		return err
	}
	text, err := os.ReadFile(log.Name())
	if err != nil {
		return err
	}
	return report(stdout, o, w, writes, string(text))
}

// hold keeps the informers running for the length of the soak, while ConfigMaps change.
func hold(ctx context.Context, o options, server *durability.Server, url string) (*watchers, int, error) {
	file := func(name certs.Name, ext string) string {
		return filepath.Join(server.DataDir, "certs", string(name)+ext)
	}
	config := &rest.Config{Host: url, TLSClientConfig: rest.TLSClientConfig{
		CAFile: file(certs.ServerCA, ".crt"), CertFile: file(certs.Admin, ".crt"), KeyFile: file(certs.Admin, ".key")}}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, 0, err
	}
	first, err := client.Resource(configMaps).Namespace("default").Create(ctx, configMap("first"), metav1.CreateOptions{})
	if err != nil {
		return nil, 0, err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop() // before the server ends, which would end the watches
	w, err := watch(watching, config, o.renew)
	if err != nil {
		return nil, 0, err
	}
	writes := 0
	tick := time.NewTicker(time.Duration(float64(time.Second) / o.rate))
	defer tick.Stop()
	end := time.NewTimer(o.Length)
	defer end.Stop()
	for over := false; !over; {
		select {
		case <-tick.C:
			if err := write(ctx, client, writes); err != nil {
				return nil, 0, err
			}
			writes++
		case <-server.Ended():
			return nil, 0, fmt.Errorf("the server ended: %v", server.State())
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		case <-end.C:
			over = true
		}
	}
	return w, writes, gone(ctx, client, first.GetResourceVersion())
}

// write creates and deletes a ConfigMap in turn.
func write(ctx context.Context, client dynamic.Interface, n int) error {
	maps := client.Resource(configMaps).Namespace("default")
	name := fmt.Sprint("changing-", n/2)
	if n%2 == 0 {
		_, err := maps.Create(ctx, configMap(name), metav1.CreateOptions{})
		return err
	}
	return maps.Delete(ctx, name, metav1.DeleteOptions{})
}

func configMap(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}}}
}

// report prints the counts, and returns an error for what should not have happened.
func report(to io.Writer, o options, w *watchers, writes int, log string) error {
	w.seen.mu.Lock()
	defer w.seen.mu.Unlock()
	lists := 0
	for _, n := range w.seen.begun {
		lists += n
	}
	var lines []string
	for line := range strings.Lines(log) {
		for _, bad := range setup.CompactedLines {
			if strings.Contains(line, bad) {
				lines = append(lines, strings.TrimSpace(line))
				break
			}
		}
	}
	fmt.Fprintf(to, "%v with compaction every %v: informers of %d types, %d writes of ConfigMaps\n", o.Length, o.Compact, len(w.types), writes)
	fmt.Fprintf(to, "watches renewed        %d\nlists again            %d\nlines in the log       %d\n",
		w.seen.renewals, lists, len(lines))
	var problems []error
	for path, n := range w.seen.begun {
		problems = append(problems, fmt.Errorf("%s was listed again %d times", path, n))
	}
	for i, line := range lines {
		if i < 5 {
			problems = append(problems, fmt.Errorf("the server's log: %s", line))
		}
	}
	if w.seen.renewals < len(w.types) {
		problems = append(problems, fmt.Errorf("%d renewals of %d watches: too few to be sure; use a longer -for", w.seen.renewals, len(w.types)))
	}
	return errors.Join(problems...)
}
