package apiserver

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/karve-k8s/karve/internal/version"
	"github.com/karve-k8s/karve/server/apiserver/replacements"
)

// storedLimit is how long the check of the stored objects may take. The server does not call itself
// ready before the check has ended.
const storedLimit = 20 * time.Second

// storedCheck looks at the versions of all stored objects if another version of Kubernetes used the
// datastore last. It logs those that this one cannot read. It runs beside the start,
// and a failure of it does not stop the start.
type storedCheck struct {
	log    *logrus.Logger
	prefix string // of all keys
}

// runningCheck is a check that has begun. A nil one has ended.
type runningCheck struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// checkStored begins the check. It ends at the latest with ctx.
func (c Config) checkStored(ctx context.Context, kube generic.RESTOptionsGetter) *runningCheck {
	ctx, cancel := context.WithCancel(ctx)
	running := &runningCheck{cancel, make(chan struct{})}
	go func() {
		defer close(running.done)
		defer cancel()
		options, err := kube.GetRESTOptions(schema.GroupResource{Resource: "namespaces"}, &core.Namespace{})
		if err != nil {
			c.Log.Warnf("the versions of the stored objects are not known: %v", err)
			return
		}
		check := storedCheck{c.Log, path.Join("/", options.StorageConfig.Prefix) + "/"}
		check.connect(ctx, options.StorageConfig.Transport)
	}()
	return running
}

// wait waits for the end of the check, and returns false if ctx ends first.
func (r *runningCheck) wait(ctx context.Context) bool {
	if r == nil {
		return ctx.Err() == nil
	}
	select {
	case <-r.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// stop ends the check, and returns when it has ended.
func (r *runningCheck) stop() {
	if r != nil {
		r.cancel()
		<-r.done
	}
}

// connect runs the check with a client of its own.
func (c storedCheck) connect(ctx context.Context, transport storagebackend.TransportConfig) {
	client, err := replacements.StorageClient(transport)
	if err != nil {
		c.log.Warnf("the versions of the stored objects are not known: %v", err)
		return
	}
	defer client.Close()
	c.run(ctx, client)
}

// run runs the check for [storedLimit] at most. Whatever it has not looked at is in the log, too.
func (c storedCheck) run(ctx context.Context, client *kubernetes.Client) {
	ctx, cancel := context.WithTimeout(ctx, storedLimit)
	defer cancel()
	var stored storedVersions
	last, err := c.do(ctx, client, &stored)
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
		why = fmt.Sprintf("the datastore did not return them in %v", storedLimit)
	case ctx.Err() != nil:
		why, level = "the server stopped first", logrus.InfoLevel // and whoever stopped it knows
	}
	c.log.Logf(level, "the versions of %s are not known: %s. The next start looks at all objects again", what, why)
}

// do is the check. With an error, it returns the last key that it looked at.
func (c storedCheck) do(ctx context.Context, client *kubernetes.Client, stored *storedVersions) (last string, err error) {
	record, err := client.Kubernetes.Get(ctx, c.prefix+LastWritten, kubernetes.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read %s%s: %w", c.prefix, LastWritten, err)
	}
	before, revision := "the release that was used before", int64(0)
	if record.KV != nil {
		before, revision = "Kubernetes "+string(record.KV.Value), record.KV.ModRevision
	}
	if record.KV != nil && string(record.KV.Value) == version.Kubernetes {
		return "", nil
	}
	last, err = readStored(ctx, client, c.prefix, stored)
	named := c.name(stored, before) // what is known, even if the rest is not
	if err != nil || named {
		return last, err // without a record, so that the next start names them, too
	}
	if _, err = client.Kubernetes.OptimisticPut(ctx, c.prefix+LastWritten, []byte(version.Kubernetes), revision, kubernetes.PutOptions{}); err != nil {
		c.log.Warnf("%s%s could not be written, so the next start looks at the stored objects again: %v", c.prefix, LastWritten, err)
	}
	return "", nil
}

// name logs the stored objects that cannot be read, and reports whether there are some.
// before is the version that used them last.
func (c storedCheck) name(stored *storedVersions, before string) bool {
	unreadable := stored.unreadable()
	if len(unreadable) > 0 {
		c.log.Errorf("Kubernetes %s cannot read the version of these stored objects: %s. Unless their API is off, the API server does not become ready. "+
			"Return to %s, and delete them there or write them in a version that both know",
			version.Kubernetes, sentence(unreadable), before)
	}
	return len(unreadable) > 0
}
