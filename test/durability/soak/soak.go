package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/karve-k8s/karve/test/durability"
)

// A soak is a server under load.
type soak struct {
	options
	server *durability.Server
	stderr io.Writer
	began  time.Time

	mu      sync.Mutex
	samples []sample
	counts  map[string]int // of requests, by name
}

// eventTTL is how long the API server keeps Events, instead of an hour by default. With an hour, their number would grow
// in the first hour and hide other growth.
const eventTTL = 2 * time.Minute

func newSoak(o options, log, stderr io.Writer) *soak {
	return &soak{
		options: o, stderr: stderr, counts: map[string]int{}, began: time.Now(),
		server: &durability.Server{Binary: o.binary, DataDir: filepath.Join(o.dir, "data"), Log: log, Args: []string{
			"--simulate-nodes", strconv.Itoa(nodes),
			"--kube-apiserver-arg", "etcd-compaction-interval=" + o.compact.String(),
			"--kube-apiserver-arg", "event-ttl=" + eventTTL.String(),
		}},
	}
}

// run starts the server, loads it until the time is over, and stops it. Then karve datastore verify reads its file.
func (s *soak) run(ctx context.Context) error {
	api, err := s.server.Start(ctx)
	if err != nil {
		return err
	}
	defer s.server.Kill() // it may have ended
	if err := s.prepare(ctx, api); err != nil {
		return err
	}
	loading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var work sync.WaitGroup
	for _, job := range s.jobs(api) {
		work.Go(func() {
			if err := job(loading); err != nil && loading.Err() == nil {
				stop(err)
			}
		})
	}
	work.Go(func() { s.measure(loading, api) })
	select {
	case <-time.After(s.length):
	case <-s.server.Ended():
		return fmt.Errorf("the server ended by itself: %v", s.server.State())
	case <-loading.Done():
	}
	failed := context.Cause(loading)
	if ctx.Err() != nil {
		failed = nil // the user's Ctrl-C is not a failure
	}
	stop(nil)
	work.Wait()
	api.HTTP.CloseIdleConnections()
	if err := errors.Join(failed, s.server.Stop(time.Minute)); err != nil {
		return err
	}
	out, err := exec.Command(s.binary, "datastore", "verify", "--data-dir", s.server.DataDir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("karve datastore verify: %w: %s", err, out)
	}
	s.say("%s", strings.TrimSpace(string(out)))
	return nil
}

// prepare creates the namespace and the custom resources of the load.
func (s *soak) prepare(ctx context.Context, api *durability.API) error {
	namespace := durability.Object{APIVersion: "v1", Kind: "Namespace", Metadata: durability.Metadata{Name: namespaceName}}
	if err := api.Do(ctx, http.MethodPost, "/api/v1/namespaces", namespace, nil); err != nil {
		return err
	}
	for _, crd := range []durability.Object{definition("soaks", "Soak"), definition("quiets", "Quiet")} {
		if err := api.Do(ctx, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd, nil); err != nil {
			return err
		}
		path := "/apis/" + group + "/v1/" + strings.TrimSuffix(crd.Metadata.Name, "."+group)
		deadline := time.Now().Add(time.Minute)
		for {
			err := api.Do(ctx, http.MethodGet, path, nil, nil)
			if err == nil {
				break
			}
			if time.Now().After(deadline) || !pause(ctx, 50*time.Millisecond) {
				return fmt.Errorf("the custom resource is not served after a minute: %w", err)
			}
		}
	}
	return nil
}

func (s *soak) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// say prints a line of progress with the time since the start.
func (s *soak) say(format string, args ...any) {
	fmt.Fprintf(s.stderr, "%8s  "+format+"\n", append([]any{time.Since(s.began).Round(time.Second)}, args...)...)
}

// tail returns the last lines of a file.
func tail(f *os.File, lines int) string {
	text, err := os.ReadFile(f.Name())
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
