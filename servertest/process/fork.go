package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/control"
)

// forks are clusters of one snapshot. A cluster whose test has ended returns to the
// snapshot in the background, and becomes the next fork. Returning takes milliseconds, and
// starting a cluster takes hundreds of them. A cluster that does not return to the snapshot
// is discarded. One is started ahead as soon as there is a snapshot. One more is started
// when a test had to wait for a fork that was still returning.
type forks struct {
	options options
	dir     *tempDir
	file    string // the snapshot, in dir
	kinds   kinds  // of the cluster that it was taken of

	mu       sync.Mutex
	changed  *sync.Cond
	idle     []*fork
	waiting  int
	starting int
	cleaning int
	spare    bool // the additional one has been started
	closed   bool
	failures []error // of starts, for those that wait
	ends     []error // of clusters that no test had any more
	thrown   []error // why clusters were discarded
}

// fork is one of the clusters.
type fork struct {
	*Cluster
	run     *instance
	dir     *tempDir // the parent of its data directory
	control *control.Client
	kinds   kinds // what it served at first
}

// The time limits of work in the background.
const (
	cleanLimit = 30 * time.Second
	kindsLimit = 10 * time.Second
)

// newForks takes the snapshot of a running cluster. The caller closes the forks.
func newForks(ctx context.Context, base *Server) (*forks, error) {
	f := &forks{options: base.run.options}
	f.changed = sync.NewCond(&f.mu)
	var err error
	if f.dir, err = newTempDir(); err != nil {
		return nil, err
	}
	f.file = filepath.Join(f.dir.path, "snapshot")
	if err = f.takeSnapshot(ctx, base.run.dir); err == nil {
		f.kinds, err = kindsOf(ctx, base.Cluster)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("snapshot: %w", err), f.dir.remove())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begin()
	return f, nil
}

func (f *forks) takeSnapshot(ctx context.Context, dataDir string) error {
	file, err := os.OpenFile(f.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	client := control.New(dataDir)
	defer client.Close()
	return errors.Join(client.Snapshot(ctx, file, control.Settle), file.Close())
}

// take waits for a cluster as the snapshot was. The caller gives it back.
func (f *forks) take() (*fork, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting++
	defer func() { f.waiting-- }()
	for {
		switch {
		case f.closed:
			return nil, errors.New("fork: the first cluster has ended, or has another snapshot")
		case len(f.idle) > 0:
			one := f.idle[0]
			f.idle = f.idle[1:]
			f.mu.Unlock()
			same := one.same()
			f.mu.Lock()
			if same {
				return one, nil
			}
			f.clean(one) // something changed late
			continue
		case len(f.failures) > 0:
			err := f.failures[0]
			f.failures = f.failures[1:]
			return nil, err
		case f.starting+f.cleaning < f.waiting:
			f.begin()
		case f.starting == 0 && !f.spare:
			f.spare = true
			f.begin()
		}
		f.changed.Wait()
	}
}

// begin starts a cluster in the background. The caller holds f.mu, here and in the
// functions below.
func (f *forks) begin() {
	f.starting++
	go func() {
		one, err := f.make()
		f.mu.Lock()
		defer f.mu.Unlock()
		f.starting--
		f.changed.Broadcast()
		switch {
		case err == nil:
			f.idle = append(f.idle, one)
		case f.waiting > 0:
			f.failures = append(f.failures, err)
		default:
			f.thrown = append(f.thrown, err)
		}
	}()
}

func (f *forks) make() (*fork, error) {
	dir, err := newTempDir()
	if err != nil {
		return nil, err
	}
	one := &fork{dir: dir, run: &instance{options: f.options, dir: filepath.Join(dir.path, "karve")}}
	if err := one.run.launch("0", "--fork-from", f.file); err != nil {
		return nil, errors.Join(err, dir.remove())
	}
	one.control = control.New(one.run.dir)
	one.Cluster, err = connect(filepath.Join(one.run.dir, "admin.kubeconfig"), !f.options.apiOnly)
	if err == nil {
		err = one.rest(f.kinds)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("fork: %w; the server's log:\n%s", err, one.run.log), one.end())
	}
	return one, nil
}

// rest undoes what the cluster has done by itself since its start, and waits until it
// serves what its snapshot did.
func (o *fork) rest(want kinds) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanLimit)
	defer cancel()
	if err := o.wait(ctx, want); err != nil {
		return err
	}
	if _, err := o.control.Reset(ctx, nil, control.Settle); err != nil {
		return err
	}
	o.kinds, err = kindsOf(ctx, o.Cluster)
	return err
}

// give takes back a cluster whose test has ended.
func (f *forks) give(one *fork) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		f.ends = append(f.ends, one.end())
		return
	}
	f.clean(one)
}

// clean returns a cluster to the snapshot, in the background.
func (f *forks) clean(one *fork) {
	f.cleaning++
	go func() {
		err := one.clean()
		f.mu.Lock()
		defer f.mu.Unlock()
		f.cleaning--
		f.changed.Broadcast()
		if err == nil {
			f.idle = append(f.idle, one)
			return
		}
		// If a child has crashed, its test is to blame, and that has ended.
		f.thrown = append(f.thrown, errors.Join(err, one.end()))
	}()
}

func (o *fork) clean() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanLimit)
	defer cancel()
	if _, err := o.control.Reset(ctx, nil, control.Settle); err != nil {
		return err
	}
	return o.wait(ctx, o.kinds)
}

// same reports whether a cluster is as its snapshot was.
func (o *fork) same() bool {
	ctx, cancel := context.WithTimeout(context.Background(), cleanLimit)
	defer cancel()
	differs, err := o.control.Reset(ctx, nil, control.DryRun)
	return err == nil && differs.Len() == 0
}

func (o *fork) end() error {
	o.control.Close()
	return errors.Join(o.run.stop(), o.dir.remove())
}

// close ends all clusters that no test has. The error says which did not end cleanly.
func (f *forks) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.changed.Broadcast()
	for f.starting+f.cleaning > 0 {
		f.changed.Wait()
	}
	for _, one := range f.idle {
		f.ends = append(f.ends, one.end())
	}
	f.idle = nil
	return errors.Join(append(f.ends, f.dir.remove())...)
}

// kinds distinguishes one state of discovery from another.
type kinds []string

// kindsOf requests the tags of the documents that list all kinds (k8s.io/apiserver
// pkg/endpoints/discovery/aggregated).
func kindsOf(ctx context.Context, c *Cluster) (kinds, error) {
	client, err := rest.HTTPClientFor(c.config)
	if err != nil {
		return nil, err
	}
	var all kinds
	for _, path := range []string{"/api", "/apis"} {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.config.Host+path, nil)
		if err != nil {
			return nil, err
		}
		request.Header.Set("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		answer, err := client.Do(request)
		if err != nil {
			return nil, err
		}
		_, err = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		if err != nil {
			return nil, err
		}
		all = append(all, answer.Header.Get("ETag"))
	}
	return all, nil
}

// wait waits until a cluster serves these kinds, and all custom ones answer.
func (o *fork) wait(ctx context.Context, want kinds) error {
	for deadline := time.Now().Add(kindsLimit); ; time.Sleep(2 * time.Millisecond) {
		got, err := kindsOf(ctx, o.Cluster)
		if err != nil {
			return err
		}
		if slices.Equal(got, want) {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("for %v, it has served other kinds than its snapshot did", kindsLimit)
		}
	}
	all, err := o.dynamic.Resource(crds).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, crd := range all.Items {
		for {
			err := o.served(ctx, crd.GetName())
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return fmt.Errorf("%s: %w", crd.GetName(), err)
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	return nil
}
