package snapshots

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/kine/location"
	"github.com/karve-k8s/karve/server/queues"
	"github.com/karve-k8s/karve/server/storage"
	"github.com/karve-k8s/karve/snapshot"
)

// These keys belong to the running server and not to the cluster's state. A reset does not change
// them.
var (
	// serverPrefixes are the prefixes of keys by which servers announce themselves.
	serverPrefixes = []string{
		"/registry/masterleases/",                 // addresses (k8s.io/kubernetes pkg/controlplane/reconcilers)
		"/registry/peerserverleases/",             // the same, for peers
		"/registry/leases/kube-system/apiserver-", // identities (pkg/controlplane/apiserver)
		"compact_rev_key",                         // clock of the compaction (k8s.io/apiserver storage/etcd3), and kine's
	}
	// serverObjects are objects that a server keeps up to date.
	serverObjects = []string{
		"/registry/services/endpoints/default/kubernetes",
		"/registry/endpointslices/default/kubernetes",
		"/registry/configmaps/kube-system/extension-apiserver-authentication",
		"/registry/configmaps/kube-system/kube-apiserver-legacy-service-account-token-tracking",
		"/registry/health",
		"/registry/" + storage.ClusterRecord, // an old one has an old token
	}
)

// OfServer reports whether a key belongs to the server itself.
func OfServer(key string) bool {
	return slices.Contains(serverObjects, key) || ofServers(key)
}

// ofServers reports whether a server has written a key about itself. A fork starts without those of its original's servers.
func ofServers(key string) bool {
	return slices.ContainsFunc(serverPrefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// clusterInfo is the key of the ConfigMap that names the server to nodes that join.
const clusterInfo = "/registry/configmaps/kube-public/cluster-info"

// resetOptions describe the API server's keys to the engine. A reset keeps two kinds of objects that the
// snapshot has, too: the leases of nodes, because a live node's is always newer than that in the snapshot, and
// cluster-info, because it follows the server. If a reset brought back what a fork's snapshot says, the server would
// change it again, and the fork would never be as its snapshot.
var resetOptions = datastore.ResetOptions{
	Keep: func(key string, both bool) bool {
		return OfServer(key) || both && (key == clusterInfo || strings.HasPrefix(key, storage.NodeLeases))
	},
	Another: func(now, then []byte) bool {
		a, b := ObjectUID(now), ObjectUID(then)
		return a != "" && b != "" && a != b
	},
}

// ObjectUID returns the UID of an object as the API server stores it, in protobuf or JSON. It is
// empty if the value is encrypted or not an object.
func ObjectUID(value []byte) string {
	if rest, ok := bytes.CutPrefix(value, []byte("k8s\x00")); ok {
		// runtime.Unknown: raw = 2; of every object metadata = 1; ObjectMeta: uid = 5.
		for _, number := range []protowire.Number{2, 1, 5} {
			rest = protoField(rest, number)
		}
		return string(rest)
	}
	if !bytes.HasPrefix(value, []byte("{")) {
		return ""
	}
	var object struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
	}
	_ = json.Unmarshal(value, &object) // after an error the UID is empty
	return object.Metadata.UID
}

// protoField returns the first length-delimited field with that number, or nil.
func protoField(message []byte, number protowire.Number) []byte {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return nil
		}
		message = message[size:]
		if n == number && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			return value
		}
		if size = protowire.ConsumeFieldValue(n, kind, message); size < 0 {
			return nil
		}
		message = message[size:]
	}
	return nil
}

// The limits of a reset. On an idle machine it takes milliseconds.
const (
	// The cluster is at rest when no queue has had work and nothing was written for quietTime.
	quietTime = 40 * time.Millisecond
	quietTick = 4 * time.Millisecond
	// workLimit is how long queues may have work until a reset goes on without them: a busy cluster always
	// has some, and so does a queue that was shut down with items in it.
	workLimit = 400 * time.Millisecond
	// lateLimit is how long a reset waits after its batch for the cluster to come to rest: one with busy clients never does.
	lateLimit = 2 * time.Second
	// settleLimit is how long a settling reset is repeated while others change the cluster again, until it fails.
	settleLimit = 10 * time.Second
)

// errNotSettled means that others have changed the cluster since the last batch of a reset.
var errNotSettled = errors.New("the cluster does not come to rest")

// resetOnce waits until the controllers have no work, resets in one batch, and waits again until the cluster is at rest, or for lateLimit. It stops no controller.
// What controllers and other clients write meanwhile stays, and controllers correct it as after any other change.
func (c *Control) resetOnce(ctx context.Context, to *datastore.Dump) (*control.Result, error) {
	out, err := c.resetBatch(ctx, to)
	if err != nil {
		return nil, err
	}
	rest, cancel := context.WithTimeout(ctx, lateLimit)
	defer cancel()
	if err := awaitRest(rest, c.Engine, func() (bool, error) { return true, nil }); err != nil && rest.Err() == nil {
		return nil, err
	}
	return out, c.removeOrphans(ctx, to)
}

// removeOrphans removes new objects in namespaces that are not there. A controller or an admission plugin whose cache was behind has made
// them, and nothing else would remove them.
func (c *Control) removeOrphans(ctx context.Context, to *datastore.Dump) error {
	now, err := c.Engine.Differs(to, resetOptions)
	if err != nil {
		return err
	}
	for _, key := range now.Surplus {
		namespace := namespaceOf(key)
		if namespace == "" {
			continue
		}
		gone := datastore.Compare{Key: "/registry/namespaces/" + namespace, Target: datastore.CompareVersion, Result: datastore.Equal}
		if _, err := c.Engine.Txn(ctx, datastore.TxnRequest{Compare: []datastore.Compare{gone}, Then: []datastore.Op{{Delete: &datastore.DeleteRequest{Key: key}}}}); err != nil {
			return err
		}
	}
	return nil
}

// namespaceOf returns the namespace of an object by its key. It is empty for objects without one, and for keys of other programs. The key of a
// custom resource has the group first, which has a dot.
func namespaceOf(key string) string {
	object, ok := strings.CutPrefix(key, "/registry/")
	parts := strings.Split(object, "/")
	if n := len(parts); ok && (n == 4 || n == 3 && !strings.Contains(parts[0], ".")) {
		return parts[n-2]
	}
	return ""
}

func (c *Control) resetBatch(ctx context.Context, to *datastore.Dump) (*control.Result, error) {
	awaitWork(ctx)
	c.Forget()
	done, err := c.Engine.Reset(ctx, to, resetOptions)
	if err != nil {
		return nil, err
	}
	out := resultOf(done.Difference)
	out.Rounds, out.Revision, out.Took = 1, done.Revision, done.Took
	return out, nil
}

// settle repeats the batch of a reset while something differs from the contents again, for limit at most: a controller may have made
// an object, such as a ConfigMap in a namespace that has just gone, which nothing removes. Nobody else may write meanwhile.
// After limit, it returns the result, and an error that wraps errNotSettled.
func (c *Control) settle(ctx context.Context, to *datastore.Dump, limit time.Duration) (*control.Result, error) {
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var out *control.Result
	for rounds := 1; ; rounds++ {
		last, err := c.resetBatch(ctx, to)
		if err != nil {
			return nil, err
		}
		if out == nil {
			out = last
		}
		out.Rounds, out.Revision, out.Took = rounds, last.Revision, last.Took
		quiet, err := staysQuiet(waiting, c.Engine, to)
		switch {
		case quiet || ctx.Err() != nil:
			return out, ctx.Err()
		case err != nil && waiting.Err() == nil:
			return nil, err
		case waiting.Err() != nil:
			return out, fmt.Errorf("%w after %d rounds, in the last of which %d objects had changed (%s)", errNotSettled, out.Rounds, last.Len(), strings.Join(last.Keys, ", "))
		}
	}
}

// awaitWork waits until no queue has work.
func awaitWork(ctx context.Context) {
	for began := time.Now(); queues.Busy() && time.Since(began) < workLimit && ctx.Err() == nil; {
		time.Sleep(time.Millisecond)
	}
}

// staysQuiet waits until the cluster is at rest. It returns false as soon as something differs from the contents again.
func staysQuiet(ctx context.Context, engine *datastore.Engine, to *datastore.Dump) (quiet bool, err error) {
	quiet = true
	err = awaitRest(ctx, engine, func() (bool, error) {
		d, err := engine.Differs(to, resetOptions)
		quiet = err == nil && d.Len() == 0
		return quiet, err
	})
	return quiet && err == nil, err
}

// awaitRest waits until the cluster is at rest. After each write it calls written, which reports whether to continue.
func awaitRest(ctx context.Context, engine *datastore.Engine, written func() (bool, error)) error {
	tick := time.NewTicker(quietTick)
	defer tick.Stop()
	began := time.Now()
	revision, quiet := int64(0), 0
	for quiet < int(quietTime/quietTick) { // it counts ticks, because on a busy machine other goroutines get little time, too
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if now := engine.Revision(); now != revision {
			revision, quiet = now, 0
			if on, err := written(); !on || err != nil {
				return err
			}
		}
		if queues.Busy() && time.Since(began) < workLimit {
			quiet = 0
			continue
		}
		quiet++
	}
	return nil
}

// ResetStopped is `karve reset` without a running server. It resets the datastore of a data
// directory to a snapshot, which is an open file. With dryRun it only reports what that would
// change. check is [Options.CheckReset].
func ResetStopped(ctx context.Context, dataDir, endpoint string, from *os.File, dryRun bool, check func(*datastore.Dump) error) (_ *control.Result, err error) {
	dir, err := location.Dir(endpoint, dataDir)
	if err != nil {
		return nil, err
	}
	lock, err := directory.Acquire(dir)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	var to *datastore.Dump
	err = snapshot.WithOpen(from, func(s *snapshot.Snapshot) (err error) {
		if err := sameCluster(s, dataDir); err != nil {
			return err
		}
		if to, err = s.Dump(ctx, dir); err == nil {
			err = check(to)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	engine, err := datastore.OpenEngine(lock, datastore.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	if dryRun {
		d, err := engine.Differs(to, resetOptions)
		if err != nil {
			return nil, err
		}
		return resultOf(*d), nil
	}
	done, err := engine.Reset(ctx, to, resetOptions)
	if err != nil {
		return nil, err
	}
	out := resultOf(done.Difference)
	out.Revision, out.Rounds, out.Took = done.Revision, 1, done.Took
	return out, nil
}
