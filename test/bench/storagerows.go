package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/karve-k8s/karve/test/bench/load"
)

const (
	keyPrefix = "/bench/"
	listKeys  = 150 // keys in one list, and so in each directory of keys
	pageKeys  = 500
)

// watchStreams is the number of streams for many watches. An API server has a stream for each
// resource, which is some dozens. Other clients of etcd open all their watches on one stream,
// which has a row of its own.
const watchStreams = 32

// A storagePlan says how much a round does.
type storagePlan struct {
	keys int           // a multiple of listKeys
	part int           // every number of operations is divided by this
	most time.Duration // of a row: operations after that are not done
}

// A storageBench measures one peer.
type storageBench struct {
	store remote
	plan  storagePlan

	keys      []string
	revisions []int64
	noise     []byte
}

func newStorageBench(store remote, plan storagePlan) *storageBench {
	b := &storageBench{store: store, plan: plan, keys: make([]string, plan.keys), revisions: make([]int64, plan.keys)}
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

func (b *storageBench) put(ctx context.Context, key, n int) error {
	revision, err := b.store.put(ctx, b.keys[key], b.value(n), b.revisions[key])
	if err != nil {
		return err
	}
	b.revisions[key] = revision
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
		found, err := b.store.get(ctx, b.keys[i*7%len(b.keys)])
		return load.Expect(found, 1, err)
	})
}

func (b *storageBench) list(ctx context.Context) (load.Result, error) {
	directories := len(b.keys) / listKeys
	return load.Drive(ctx, b.limits(4, 40000), func(ctx context.Context, _, _, i int) error {
		found, err := b.store.list(ctx, fmt.Sprintf("%s%03d/", keyPrefix, i%directories), "", 0)
		return load.Expect(found, listKeys, err)
	})
}

func (b *storageBench) page(ctx context.Context) (load.Result, error) {
	return load.Drive(ctx, b.limits(4, 20000), func(ctx context.Context, _, _, i int) error {
		// Any page but the last ones, which are shorter.
		from := b.keys[i*listKeys%(len(b.keys)-pageKeys)]
		found, err := b.store.list(ctx, keyPrefix, from, pageKeys)
		return load.Expect(found, pageKeys, err)
	})
}

func (b *storageBench) first(ctx context.Context) (load.Result, error) {
	return load.Drive(ctx, b.limits(4, 200000), func(ctx context.Context, _, _, _ int) error {
		found, err := b.store.list(ctx, keyPrefix, "", 1)
		return load.Expect(found, 1, err)
	})
}

func (b *storageBench) count(ctx context.Context) (load.Result, error) {
	return load.Drive(ctx, b.limits(4, 200000), func(ctx context.Context, _, _, _ int) error {
		found, err := b.store.count(ctx, keyPrefix)
		return load.Expect(int(found), len(b.keys), err)
	})
}

func fanOut(watchers, puts, streams int) func(*storageBench, context.Context) (load.Result, error) {
	return func(b *storageBench, ctx context.Context) (load.Result, error) {
		open := func(ctx context.Context) (func() ([]int64, error), error) {
			return b.store.watch(ctx, keyPrefix, streams)
		}
		return load.FanOut(ctx, open, watchers, max(1, puts/b.plan.part), b.plan.most, func(ctx context.Context, n int) (int64, error) {
			key := n % len(b.keys)
			err := b.put(ctx, key, n)
			return b.revisions[key], err
		})
	}
}

func (b *storageBench) remove(ctx context.Context) (load.Result, error) {
	return load.Drive(ctx, load.Limits{Clients: 16, Ops: len(b.keys), Most: mostCreate}, func(ctx context.Context, _, _, i int) error {
		return b.store.remove(ctx, b.keys[i], b.revisions[i])
	})
}
