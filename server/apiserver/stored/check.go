// Package stored names the stored objects that this version of Kubernetes cannot read, before the server is ready.
//
// It reads all objects only if another version of Kubernetes used the datastore last. It rewrites no object,
// which would change resourceVersions.
package stored

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/karve-k8s/karve/bootstrap"
	"github.com/karve-k8s/karve/internal/version"
	"github.com/karve-k8s/karve/server/apiserver/replacements"
)

const (
	// limit is how long the check of the stored objects may take. The server does not call itself
	// ready before the check has ended.
	limit = 20 * time.Second
	// page is how many objects one request returns, as for upstream's watch cache (storageWatchListPageSize).
	page = 10_000
)

// lastWritten is the key, below the API server's prefix, of the version of Kubernetes that used the
// datastore last. It is among the objects, so that backups, snapshots and resets take it with them.
const lastWritten = "karve/kubernetes-version"

// Recorded returns a store that also writes the version of Kubernetes among the first objects of a new cluster.
func Recorded(store bootstrap.Store) bootstrap.Store { return recorded{store} }

type recorded struct{ bootstrap.Store }

// CreateAll implements [bootstrap.Store].
func (s recorded) CreateAll(ctx context.Context, prefix string, objects iter.Seq2[string, []byte]) error {
	return s.Store.CreateAll(ctx, prefix, func(yield func(string, []byte) bool) {
		for key, value := range objects {
			if !yield(key, value) {
				return
			}
		}
		yield(prefix+lastWritten, []byte(version.Kubernetes))
	})
}

// Check is a check that has begun. It logs the objects that cannot be read. A failure of it does not stop the start. A
// nil one has ended.
type Check struct {
	log    *logrus.Logger
	prefix string // of all keys
	cancel context.CancelFunc
	done   chan struct{}
}

// Begin begins a check, with a client of its own. It ends at the latest with ctx.
func Begin(ctx context.Context, log *logrus.Logger, kube generic.RESTOptionsGetter) *Check {
	ctx, cancel := context.WithCancel(ctx)
	c := &Check{log: log, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		defer cancel()
		if err := c.connect(ctx, kube); err != nil {
			log.Warnf("the versions of the stored objects are not known: %v", err)
		}
	}()
	return c
}

// Wait waits for the end of the check, and returns false if ctx ends first.
func (c *Check) Wait(ctx context.Context) bool {
	if c == nil {
		return ctx.Err() == nil
	}
	select {
	case <-c.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// Stop ends the check, and returns when it has ended.
func (c *Check) Stop() {
	if c != nil {
		c.cancel()
		<-c.done
	}
}

func (c *Check) connect(ctx context.Context, kube generic.RESTOptionsGetter) error {
	options, err := kube.GetRESTOptions(schema.GroupResource{Resource: "namespaces"}, &core.Namespace{})
	if err != nil {
		return err
	}
	client, err := replacements.StorageClient(options.StorageConfig.Transport)
	if err != nil {
		return err
	}
	defer client.Close()
	c.prefix = path.Join("/", options.StorageConfig.Prefix) + "/"
	c.run(ctx, client)
	return nil
}

// run runs the check for limit at most. Whatever it has not looked at is in the log, too.
func (c *Check) run(ctx context.Context, client *kubernetes.Client) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	last, err := c.do(ctx, client)
	if err == nil {
		return
	}
	what, why := "the stored objects", err.Error()
	if last != "" {
		what = "the stored objects after " + last
	}
	level := logrus.WarnLevel
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		why = fmt.Sprintf("the datastore did not return them in %v", limit)
	case ctx.Err() != nil:
		why, level = "the server stopped first", logrus.InfoLevel // and whoever stopped it knows
	}
	c.log.Logf(level, "the versions of %s are not known: %s. The next start looks at all objects again", what, why)
}

// do is the check. With an error, it returns the last key that it looked at.
func (c *Check) do(ctx context.Context, client *kubernetes.Client) (last string, err error) {
	record, err := client.Kubernetes.Get(ctx, c.prefix+lastWritten, kubernetes.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read %s%s: %w", c.prefix, lastWritten, err)
	}
	before, revision := "the release that was used before", int64(0)
	if record.KV != nil {
		before, revision = "Kubernetes "+string(record.KV.Value), record.KV.ModRevision
	}
	if record.KV != nil && string(record.KV.Value) == version.Kubernetes {
		return "", nil
	}
	var stored versions
	last, err = read(ctx, client, c.prefix, &stored)
	named := c.name(stored, before) // what is known, even if the rest is not
	if err != nil || named {
		return last, err // without a record, so that the next start names them, too
	}
	if _, err = client.Kubernetes.OptimisticPut(ctx, c.prefix+lastWritten, []byte(version.Kubernetes), revision, kubernetes.PutOptions{}); err != nil {
		c.log.Warnf("%s%s could not be written, so the next start looks at the stored objects again: %v", c.prefix, lastWritten, err)
	}
	return "", nil
}

// read adds all objects below prefix to stored, in the order of their keys. With an error, it returns the last key that it
// has added.
func read(ctx context.Context, client *kubernetes.Client, prefix string, stored *versions) (last string, err error) {
	for from, end := prefix, clientv3.GetPrefixRangeEnd(prefix); ; from = last + "\x00" {
		got, err := client.KV.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page))
		if err != nil {
			return last, err
		}
		for _, kv := range got.Kvs {
			last = string(kv.Key)
			stored.add(strings.TrimPrefix(last, prefix), kv.Value)
		}
		if !got.More {
			return last, nil
		}
	}
}

// name logs the stored objects that cannot be read, and reports whether there are some.
// before is the version that used them last.
func (c *Check) name(stored versions, before string) bool {
	unreadable := stored.unreadable()
	if len(unreadable) > 0 {
		c.log.Errorf("Kubernetes %s cannot read the version of these stored objects: %s. Unless their API is off, the API server does not become ready. "+
			"Return to %s, and delete them there or write them in a version that both know",
			version.Kubernetes, sentence(unreadable), before)
	}
	return len(unreadable) > 0
}
