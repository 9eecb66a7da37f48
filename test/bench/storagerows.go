package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc/metadata"

	"github.com/karve-k8s/karve/test/bench/load"
)

const (
	keyPrefix = "/bench/"
	listKeys  = 150 // keys in one list, and so in each directory of keys
	pageKeys  = 500
)

// watchStreams is the number of streams for many watches. An API server has a stream for each
// resource, which is some dozens.
const watchStreams = 32

// errConflict says that a key is not at the revision of the benchmark's last write.
var errConflict = errors.New("key is at another revision")

// storageRows are in the order of the measurement, which is part of the benchmark: when keys are
// read, they have a history, as in a cluster that has run for a while.
var storageRows = []struct {
	only, row string
	run       func(*storageBench, context.Context) (load.Result, error)
}{
	{"create", "create, 16 clients", (*storageBench).create},
	{"update", "update, 1 client", update(1, 4000)},
	{"update", "update, 16 clients", update(16, 20000)},
	{"get", "get, 16 clients", (*storageBench).get},
	{"list", "list 150 keys, 4 clients", (*storageBench).list},
	{"list", "list page of 500, 4 clients", (*storageBench).page},
	{"count", "count, 4 clients", (*storageBench).count},
	{"watch", "put to watch", fanOut(1, 1000)},
	{"watch", "fan-out, 50 watchers", fanOut(50, 200)},
	{"delete", "delete, 16 clients", (*storageBench).remove},
}

// A storagePlan says how much a round does.
type storagePlan struct {
	keys int           // a multiple of listKeys
	part int           // every number of operations is divided by this
	most time.Duration // of a row: operations after that are not done
}

// A storageBench measures one peer.
type storageBench struct {
	bench
	client *kubernetes.Client
	plan   storagePlan

	keys      []string
	revisions []int64
	noise     []byte
	watches   atomic.Int64 // opened so far
}

func newStorageBench(running bench, client *kubernetes.Client, plan storagePlan) *storageBench {
	b := &storageBench{bench: running, client: client, plan: plan, keys: make([]string, plan.keys), revisions: make([]int64, plan.keys)}
	for i := range b.keys {
		b.keys[i] = fmt.Sprintf("%s%03d/%04d", keyPrefix, i/listKeys, i%listKeys)
	}
	// It cannot be compressed, and is the same in every run.
	b.noise = make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{}).Read(b.noise)
	return b
}

// value returns a new slice, which a client may keep.
func (b *storageBench) value(n int) []byte {
	v := make([]byte, valueBytes)
	copy(v, b.noise[n*31%(len(b.noise)-valueBytes):])
	binary.LittleEndian.PutUint64(v, uint64(n))
	return v
}

func (b *storageBench) limits(clients, ops int) load.Limits {
	return load.Limits{Clients: clients, Ops: max(1, ops/b.plan.part), Most: b.plan.most}
}

// put writes a key from the revision of its last write; a new key has none.
func (b *storageBench) put(ctx context.Context, key, n int) error {
	resp, err := b.client.OptimisticPut(ctx, b.keys[key], b.value(n), b.revisions[key], kubernetes.PutOptions{GetOnFailure: b.revisions[key] != 0})
	if err == nil && !resp.Succeeded {
		err = errConflict
	}
	if err != nil {
		return err
	}
	b.revisions[key] = resp.Revision
	return nil
}

// create is never cut short, because the rows after it need every key.
func (b *storageBench) create(ctx context.Context) (load.Result, error) {
	res, err := load.Drive(ctx, load.Limits{Clients: 16, Ops: len(b.keys), Most: mostCreate}, func(ctx context.Context, _, _, i int) error {
		return b.put(ctx, i, i)
	})
	if err == nil && res.Ops < len(b.keys) {
		err = fmt.Errorf("%d of %d keys after %v", res.Ops, len(b.keys), mostCreate)
	}
	return res, err
}

func update(clients, ops int) func(*storageBench, context.Context) (load.Result, error) {
	return func(b *storageBench, ctx context.Context) (load.Result, error) {
		own := len(b.keys) / clients // no two clients write the same key
		return load.Drive(ctx, b.limits(clients, ops), func(ctx context.Context, worker, n, i int) error {
			return b.put(ctx, worker+clients*(n%own), i)
		})
	}
}

func (b *storageBench) get(ctx context.Context) (load.Result, error) {
	return load.Drive(ctx, b.limits(16, 200000), func(ctx context.Context, _, _, i int) error {
		resp, err := b.client.Kubernetes.Get(ctx, b.keys[i*7%len(b.keys)], kubernetes.GetOptions{})
		if err == nil && resp.KV == nil {
			err = fmt.Errorf("%w: a key is missing", load.ErrWrong)
		}
		return err
	})
}

func (b *storageBench) list(ctx context.Context) (load.Result, error) {
	directories := len(b.keys) / listKeys
	return load.Drive(ctx, b.limits(4, 40000), func(ctx context.Context, _, _, i int) error {
		resp, err := b.client.List(ctx, fmt.Sprintf("%s%03d/", keyPrefix, i%directories), kubernetes.ListOptions{})
		return load.Expect(len(resp.Kvs), listKeys, err)
	})
}

func (b *storageBench) page(ctx context.Context) (load.Result, error) {
	return load.Drive(ctx, b.limits(4, 20000), func(ctx context.Context, _, _, i int) error {
		// Any page but the last ones, which are shorter.
		from := b.keys[i*listKeys%(len(b.keys)-pageKeys)]
		resp, err := b.client.List(ctx, keyPrefix, kubernetes.ListOptions{Limit: pageKeys, Continue: from})
		return load.Expect(len(resp.Kvs), pageKeys, err)
	})
}

func (b *storageBench) count(ctx context.Context) (load.Result, error) {
	return load.Drive(ctx, b.limits(4, 200000), func(ctx context.Context, _, _, _ int) error {
		found, err := b.client.Count(ctx, keyPrefix, kubernetes.CountOptions{})
		return load.Expect(int(found), len(b.keys), err)
	})
}

func fanOut(watchers, puts int) func(*storageBench, context.Context) (load.Result, error) {
	return func(b *storageBench, ctx context.Context) (load.Result, error) {
		return load.FanOut(ctx, b.watch, watchers, max(1, puts/b.plan.part), b.plan.most, func(ctx context.Context, n int) (int64, error) {
			key := n % len(b.keys)
			err := b.put(ctx, key, n)
			return b.revisions[key], err
		})
	}
}

// watch is a load.Watch, from a revision, as the API server does it. It is open when it returns.
func (b *storageBench) watch(ctx context.Context) (func() ([]int64, error), error) {
	now, err := b.revision(ctx)
	if err != nil {
		return nil, err
	}
	// The client opens a stream for each set of metadata.
	ctx = metadata.AppendToOutgoingContext(ctx, "bench-stream", strconv.FormatInt(b.watches.Add(1)%watchStreams, 10))
	ch := b.client.Watch(ctx, keyPrefix, clientv3.WithPrefix(), clientv3.WithRev(now+1), clientv3.WithCreatedNotify())
	next := func() ([]int64, error) {
		resp, ok := <-ch
		if !ok {
			return nil, fmt.Errorf("watch ended: %w", context.Cause(ctx))
		}
		revisions := make([]int64, len(resp.Events))
		for i, event := range resp.Events {
			revisions[i] = event.Kv.ModRevision
		}
		return revisions, resp.Err()
	}
	if _, err := next(); err != nil { // the response that the watch is open
		return nil, err
	}
	return next, nil
}

func (b *storageBench) revision(ctx context.Context) (int64, error) {
	resp, err := b.client.KV.Get(ctx, keyPrefix, clientv3.WithPrefix(), clientv3.WithLimit(1))
	if err != nil {
		return 0, err
	}
	return resp.Header.Revision, nil
}

func (b *storageBench) remove(ctx context.Context) (load.Result, error) {
	return load.Drive(ctx, load.Limits{Clients: 16, Ops: len(b.keys), Most: mostCreate}, func(ctx context.Context, _, _, i int) error {
		resp, err := b.client.OptimisticDelete(ctx, b.keys[i], b.revisions[i], kubernetes.DeleteOptions{GetOnFailure: true})
		if err == nil && !resp.Succeeded {
			err = errConflict
		}
		return err
	})
}
