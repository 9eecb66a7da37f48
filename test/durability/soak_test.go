//go:build linux

package durability

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/test/bench/machine"
)

// soakVariable has the length of a soak, such as 2h.
const soakVariable = "KARVE_SOAK"

// A soak is a load on one server.
type soak struct {
	t        *testing.T
	server   *testServer
	api      *API
	relisted atomic.Int64 // watches that had to list again
}

// soaked are the collections with a writer each.
var soaked = []collection{collections["configmaps"], collections["leases"], {"v1", "Secret", "/api/v1/namespaces/default/secrets", false}}

// A server under load for hours refuses nothing, loses nothing and does not end. scripts/soak runs it, and shows how memory, goroutines and files
// grow.
func TestSoak(t *testing.T) {
	text := os.Getenv(soakVariable)
	if text == "" {
		t.Skipf("%s is not set: scripts/soak sets it", soakVariable)
	}
	length, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	// Events would grow for their hour, and hide other growth.
	s := &soak{t: t, server: newServer(t, "--simulate-nodes", "5", "--event-ttl", "2m", "--kube-apiserver-arg", "etcd-compaction-interval=1m")}
	s.api = s.server.start()
	ctx, stop := context.WithTimeout(t.Context(), length)
	defer stop()
	var work sync.WaitGroup
	jobs := []func(context.Context) error{s.namespaces}
	// Of the quiet one, only bookmarks keep a watch ahead of compactions.
	watched := []string{"/api/v1/pods", "/api/v1/nodes", "/apis/apps/v1/deployments", "/apis/storage.k8s.io/v1/storageclasses"}
	for _, in := range soaked {
		jobs = append(jobs, func(ctx context.Context) error { return s.write(ctx, in) })
		watched = append(watched, in.path)
	}
	for _, job := range jobs {
		work.Go(func() {
			if err := job(ctx); err != nil {
				t.Error(err)
				stop()
			}
		})
	}
	for _, path := range watched {
		work.Go(func() { s.watch(ctx, path) })
	}
	s.measure(ctx)
	work.Wait()
	s.api.HTTP.CloseIdleConnections()
	s.server.stop()
	if out, err := exec.Command(s.server.Binary, "datastore", "verify", "--data-dir", s.server.DataDir).CombinedOutput(); err != nil {
		t.Errorf("karve datastore verify: %v: %s", err, out)
	}
}

// pauseFor waits. It returns false if ctx ends first.
func pauseFor(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// write writes about eight objects a second, and reads them at the end. Calls outlive ctx, so each has an answer.
func (s *soak) write(ctx context.Context, in collection) error {
	j := NewJournal()
	for n := 0; pauseFor(ctx, 125*time.Millisecond); n++ {
		name := fmt.Sprintf("own-%d", n%100)
		if answered, err := writeOwn(s.t.Context(), s.api, j, in, name); err != nil || !answered {
			return fmt.Errorf("write %s/%s: no success: %v", in.path, name, err)
		}
		if n%10 == 0 {
			s.api.Do(s.t.Context(), http.MethodGet, in.path+"?resourceVersion=0", nil, nil)
		}
	}
	return compareOwn(s.t.Context(), s.api, j, in, "own-")
}

// namespaces creates a namespace with a Deployment, waits for its Pods, and deletes the namespace, again and again.
func (s *soak) namespaces(ctx context.Context) error {
	for n := 0; pauseFor(ctx, 5*time.Second); n++ {
		name := fmt.Sprintf("soak-%d", n)
		path, deployments := "/api/v1/namespaces/"+name, "/apis/apps/v1/namespaces/"+name+"/deployments"
		for _, step := range []func() error{
			func() error {
				return s.api.Do(s.t.Context(), http.MethodPost, "/api/v1/namespaces", Object{APIVersion: "v1", Kind: "Namespace", Metadata: Metadata{Name: name}}, nil)
			},
			func() error { return s.api.Do(s.t.Context(), http.MethodPost, deployments, Deployment("d", 5), nil) },
			func() error {
				return eventually.Poll(func() error {
					var d Object
					err := s.api.Do(s.t.Context(), http.MethodGet, deployments+"/d", nil, &d)
					if available, _ := d.Status["availableReplicas"].(float64); err == nil && available != 5 {
						err = fmt.Errorf("%v of 5 Pods are available", available)
					}
					return err
				})
			},
			func() error { return s.api.Do(s.t.Context(), http.MethodDelete, path, nil, nil) },
			func() error {
				return eventually.Poll(func() error {
					if err := s.api.Do(s.t.Context(), http.MethodGet, path, nil, nil); Refused(err) != http.StatusNotFound {
						return fmt.Errorf("%s is there: %v", path, err)
					}
					return nil
				})
			},
		} {
			if err := step(); err != nil {
				return err
			}
		}
	}
	return nil
}

// watch watches as a client does: it goes on from the last revision, and lists again only after a 410.
func (s *soak) watch(ctx context.Context, path string) {
	for revision := int64(0); ctx.Err() == nil; {
		if revision == 0 {
			_, listed, err := s.api.List(ctx, path, "")
			if err != nil {
				pauseFor(ctx, time.Second)
				continue
			}
			revision = listed
		}
		err := s.api.Watch(ctx, path, revision, func(e Event) error {
			revision = e.Object.Revision()
			return nil
		})
		if errors.Is(err, ErrExpired) {
			s.relisted.Add(1)
			revision = 0
		}
		pauseFor(ctx, time.Duration(rand.IntN(1000))*time.Millisecond)
	}
}

// measure logs figures until ctx ends, and how much they grew from the second quarter to the last one.
func (s *soak) measure(ctx context.Context) {
	began := time.Now()
	samples := map[string][]float64{}
	for ctx.Err() == nil {
		figures, err := s.figures()
		if err != nil {
			s.t.Error(err)
			return
		}
		var line []string
		for _, name := range slices.Sorted(maps.Keys(figures)) {
			samples[name] = append(samples[name], figures[name])
			line = append(line, fmt.Sprintf("%s %.1f", name, figures[name]))
		}
		s.t.Logf("%v: %s; %d watches had to list again", time.Since(began).Round(time.Second), strings.Join(line, ", "), s.relisted.Load())
		pauseFor(ctx, 15*time.Second)
	}
	for _, name := range slices.Sorted(maps.Keys(samples)) {
		all := samples[name]
		n := len(all) / 4
		if before, after := median(all[n:2*n+1]), median(all[len(all)-n-1:]); n > 0 {
			s.t.Logf("%s: median %.1f, and %.1f at the end", name, before, after)
		}
	}
}

func median(all []float64) float64 { return slices.Sorted(slices.Values(all))[len(all)/2] }

func (s *soak) figures() (map[string]float64, error) {
	page, err := s.api.Metrics(s.t.Context())
	if err != nil {
		return nil, err
	}
	resident, err := machine.ResidentMemory(s.server.PID())
	if err != nil {
		return nil, err
	}
	all := map[string]float64{"RSS in MB": float64(resident) / 1e6}
	for name, metric := range map[string]string{"live heap in MB": "go_gc_heap_live_bytes", "goroutines": "go_goroutines", "open files": "process_open_fds"} {
		found := regexp.MustCompile(`(?m)^` + metric + ` (\S+)$`).FindSubmatch(page)
		if found == nil {
			return nil, fmt.Errorf("the server has no metric %s", metric)
		}
		if all[name], err = strconv.ParseFloat(string(found[1]), 64); err != nil {
			return nil, err
		}
	}
	all["live heap in MB"] /= 1e6
	for name, suffix := range map[string]string{"database in MB": "", "WAL in MB": "-wal"} {
		info, err := os.Stat(s.server.Database() + suffix)
		if err != nil {
			return nil, err
		}
		all[name] = float64(info.Size()) / 1e6
	}
	return all, nil
}
