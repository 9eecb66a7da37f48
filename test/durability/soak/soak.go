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
	"sync/atomic"
	"time"

	"github.com/karve-k8s/karve/test/durability"
)

// A soak is a cluster over several lives of its server.
type soak struct {
	options
	server  *durability.Server
	journal *durability.Journal
	stderr  io.Writer
	began   time.Time
	seen    *watchers

	killing atomic.Bool // the server is being killed, so requests fail

	mu      sync.Mutex
	samples []sample
	counts  map[string]int // of requests, by name
	lives   int
	gone    map[string]bool // namespaces that were seen to be gone
}

// eventTTL is how long the API server keeps Events, instead of an hour by default. As in etcd, a
// lease has its whole TTL again after each start. With an hour, no Event would expire in a soak of
// two hours that kills the server in the first hour, and their number would hide other growth.
const eventTTL = 2 * time.Minute

func newSoak(o options, log, stderr io.Writer) *soak {
	return &soak{
		options: o, stderr: stderr, journal: durability.NewJournal(), seen: newWatchers(),
		counts: map[string]int{}, gone: map[string]bool{}, began: time.Now(),
		server: &durability.Server{Binary: o.binary, DataDir: filepath.Join(o.dir, "data"), Log: log, Args: []string{
			"--simulate-nodes", strconv.Itoa(nodes),
			"--kube-apiserver-arg", "etcd-compaction-interval=" + o.compact.String(),
			"--kube-apiserver-arg", "event-ttl=" + eventTTL.String(),
		}},
	}
}

// run runs lives until the time is over. The first half of the time has kills. The second half is one
// life, whose slopes show a leak. After the last kill, the server is started and stopped once more,
// and karve datastore verify reads its file.
func (s *soak) run(ctx context.Context) error {
	end := s.began.Add(s.length)
	for {
		now := time.Now()
		until := now.Add(s.kill)
		if now.Sub(s.began) >= s.length/2 || until.After(end) {
			until = end
		} else if half := s.began.Add(s.length / 2); until.After(half) {
			until = half
		}
		if err := s.live(ctx, until); err != nil {
			return err
		}
		if ctx.Err() != nil || !time.Now().Before(end) {
			break
		}
	}
	return s.last(context.WithoutCancel(ctx))
}

// live starts the server, compares its objects with the journal, loads it until the given time and
// kills it.
func (s *soak) live(ctx context.Context, until time.Time) error {
	api, err := s.start(ctx)
	if err != nil {
		return err
	}
	s.lives++
	if s.lives == 1 {
		if err := s.prepare(ctx, api); err != nil {
			return err
		}
	}
	living, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var work sync.WaitGroup
	s.killing.Store(false)
	s.seen.start()
	for _, job := range s.jobs(api) {
		work.Go(func() {
			if err := job(living); err != nil && living.Err() == nil {
				stop(err)
			}
		})
	}
	work.Go(func() { s.measure(living, api) })
	select {
	case <-time.After(time.Until(until)):
	case <-s.server.Ended():
		stop(fmt.Errorf("the server ended by itself: %v", s.server.State()))
	case <-living.Done():
	}
	err = context.Cause(living) // before stop below: the error of a job or of the server, if there is one
	s.killing.Store(true)
	killed := s.server.Kill() // under load
	stop(errKilled)
	work.Wait()
	api.HTTP.CloseIdleConnections()
	if ctx.Err() != nil {
		return nil // the user's Ctrl-C is not a failure
	}
	return errors.Join(err, killed)
}

var errKilled = errors.New("the server was killed")

// start starts the server, and compares its objects with the journal.
func (s *soak) start(ctx context.Context) (*durability.API, error) {
	began := time.Now()
	api, err := s.server.Start(ctx)
	if err != nil {
		return nil, err
	}
	took := time.Since(began)
	if s.lives == 0 {
		return api, nil
	}
	objects, err := s.compare(ctx, api)
	if err != nil {
		return nil, fmt.Errorf("acknowledged data is missing after kill %d: %w", s.lives, err)
	}
	s.say("start %d took %.2f s; all %d objects are as acknowledged", s.lives+1, took.Seconds(), objects)
	return api, nil
}

// compare compares every object of the journal's kinds with the journal.
func (s *soak) compare(ctx context.Context, api *durability.API) (objects int, err error) {
	have, newest := map[string]durability.State{}, int64(0)
	for _, k := range kinds {
		list, revision, err := api.List(ctx, k.collection(), "")
		if err != nil {
			return 0, err
		}
		for _, o := range list {
			if o.Value() != "" { // not kube-root-ca.crt
				have[k.object(o.Metadata.Name)] = durability.Observe(o)
			}
		}
		newest = max(newest, revision)
	}
	if err := s.journal.Compare(have, newest); err != nil {
		return 0, err
	}
	namespaces, _, err := api.List(ctx, "/api/v1/namespaces", "")
	for name := range namespaces {
		if s.gone[name] {
			return 0, fmt.Errorf("namespace %s was gone and exists again", name)
		}
	}
	return len(have), err
}

// last starts the server after the last kill, stops it and verifies the datastore.
func (s *soak) last(ctx context.Context) error {
	if _, err := s.start(ctx); err != nil {
		return err
	}
	if err := s.server.Stop(time.Minute); err != nil {
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
		for err := errKilled; err != nil; { // until it is served
			if err = api.Do(ctx, http.MethodGet, path, nil, nil); err != nil && time.Now().After(deadline) {
				return fmt.Errorf("the custom resource is not served after a minute: %w", err)
			}
			time.Sleep(50 * time.Millisecond)
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
