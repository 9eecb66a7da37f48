package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/karve-k8s/karve/test/bench/load"
	"github.com/karve-k8s/karve/test/bench/machine"
)

const (
	keyPrefix  = "/bench/"
	listKeys   = 150 // keys in one list, and so in each directory of keys
	pageKeys   = 500
	valueBytes = 1024

	// mostCreate bounds the creates, which are never cut short, because the rows after them
	// need every key.
	mostCreate = time.Minute
)

// A plan says how much a round does.
type plan struct {
	Keys int           `json:"keys"`         // a multiple of listKeys
	Part int           `json:"part"`         // every number of operations is divided by this
	Most time.Duration `json:"row_limit_ns"` // of a row: operations after that are not done
}

// A round is what one round measured of one peer. Sizes are in bytes.
type round struct {
	Peer          string        `json:"peer"`
	Round         int           `json:"round"`
	Rows          []load.Result `json:"rows"`
	MemoryEmpty   int64         `json:"memory_empty"` // anonymous memory before the first write
	MemoryAfter   int64         `json:"memory_after"` // and after the last
	DiskWritten   int64         `json:"disk_written"` // before the compaction
	DiskCompacted int64         `json:"disk_compacted"`
	Database      int64         `json:"database"`                // the one file of keys with its WAL, after the compaction
	CPU           float64       `json:"cpu_seconds"`             // of the peer
	CPUWithClient float64       `json:"cpu_seconds_with_client"` // the same for a peer in process
	OtherLoad     float64       `json:"other_load"`              // part of the machine that other processes used
}

// A bench measures one peer.
type bench struct {
	store    store
	plan     plan
	peer     int    // process id
	dir      string // its data
	file     string // the file in dir that has the keys
	progress func(load.Result)

	keys      []string
	revisions []int64
	noise     []byte
}

// measure measures every row. The order is part of the benchmark: when keys are read, they have a
// history, as in a cluster that has run for a while.
func (b *bench) measure(ctx context.Context) (*round, error) {
	b.prepare()
	r := &round{}
	var err error
	if r.MemoryEmpty, err = machine.AnonymousMemory(b.peer); err != nil {
		return nil, err
	}
	peer, all, err := b.cpu()
	if err != nil {
		return nil, err
	}

	began := time.Now()
	busy, err := machine.BusyTime()
	if err != nil {
		return nil, err
	}

	rows := []struct {
		name string
		run  func(context.Context) (load.Result, error)
	}{
		{"create, 16 clients", b.create},
		{"update, 1 client", b.update(1, 4000)},
		{"update, 16 clients", b.update(16, 20000)},
		{"update, 64 clients", b.update(64, 30000)},
		{"get, 16 clients", b.get},
		{"list 150 keys, 4 clients", b.list},
		{"list page of 500, 4 clients", b.page},
		{"list with limit 1, 4 clients", b.first},
		{"count, 4 clients", b.count},
		{"put to watch", b.watch(1, 1000, 1)},
		{"fan-out, 50 watchers", b.watch(50, 200, watchStreams)},
		{"fan-out, 50 on one stream", b.watch(50, 200, 1)},
		{"fan-out, 500 watchers", b.watch(500, 60, watchStreams)},
		{"delete, 16 clients", b.remove},
	}
	for _, row := range rows {
		if row.name == "delete, 16 clients" {
			if err := b.compact(ctx, r); err != nil {
				return nil, fmt.Errorf("compact: %w", err)
			}
		}
		_, before, err := b.cpu()
		if err != nil {
			return nil, err
		}
		res, err := row.run(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", row.name, err)
		}
		_, after, err := b.cpu()
		if err != nil {
			return nil, err
		}
		res.Row = row.name
		if res.Ops > 0 {
			res.CPU = float64((after - before).Microseconds()) / float64(res.Ops)
		}
		r.Rows = append(r.Rows, res)
		b.progress(res)
	}

	if r.MemoryAfter, err = machine.AnonymousMemory(b.peer); err != nil {
		return nil, err
	}
	peerAfter, allAfter, err := b.cpu()
	if err != nil {
		return nil, err
	}
	busyAfter, err := machine.BusyTime()
	if err != nil {
		return nil, err
	}
	other := busyAfter - busy - (allAfter - all)
	r.OtherLoad = max(0, other.Seconds()/time.Since(began).Seconds()/float64(runtime.NumCPU()))
	r.CPU, r.CPUWithClient = (peerAfter - peer).Seconds(), (allAfter - all).Seconds()
	return r, nil
}

func (b *bench) prepare() {
	b.keys = make([]string, b.plan.Keys)
	b.revisions = make([]int64, b.plan.Keys)
	for i := range b.keys {
		b.keys[i] = fmt.Sprintf("%s%03d/%04d", keyPrefix, i/listKeys, i%listKeys)
	}
	// It cannot be compressed, and is the same in every run.
	b.noise = make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{}).Read(b.noise)
}

// value returns a new slice, because a peer in this process may keep it.
func (b *bench) value(n int) []byte {
	v := make([]byte, valueBytes)
	copy(v, b.noise[n*31%(len(b.noise)-valueBytes):])
	binary.LittleEndian.PutUint64(v, uint64(n))
	return v
}

func (b *bench) limits(clients, ops int) load.Limits {
	return load.Limits{Clients: clients, Ops: max(1, ops/b.plan.Part), Most: b.plan.Most}
}

func (b *bench) put(ctx context.Context, key, n int) error {
	revision, err := b.store.put(ctx, b.keys[key], b.value(n), b.revisions[key])
	if err != nil {
		return err
	}
	b.revisions[key] = revision
	return nil
}

func (b *bench) create(ctx context.Context) (load.Result, error) {
	res, err := load.Drive(ctx, load.Limits{Clients: 16, Ops: len(b.keys), Most: mostCreate}, func(ctx context.Context, _, _, i int) error {
		return b.put(ctx, i, i)
	})
	if err == nil && res.Ops < len(b.keys) {
		err = fmt.Errorf("%d of %d keys after %v", res.Ops, len(b.keys), mostCreate)
	}
	return res, err
}

func (b *bench) update(clients, ops int) func(context.Context) (load.Result, error) {
	return func(ctx context.Context) (load.Result, error) {
		own := len(b.keys) / clients // no two clients write the same key
		return load.Drive(ctx, b.limits(clients, ops), func(ctx context.Context, worker, n, i int) error {
			return b.put(ctx, worker+clients*(n%own), i)
		})
	}
}

func (b *bench) get(ctx context.Context) (load.Result, error) {
	return load.Drive(ctx, b.limits(16, 200000), func(ctx context.Context, _, _, i int) error {
		found, err := b.store.get(ctx, b.keys[i*7%len(b.keys)])
		return load.Expect(found, 1, err)
	})
}

func (b *bench) list(ctx context.Context) (load.Result, error) {
	directories := len(b.keys) / listKeys
	return load.Drive(ctx, b.limits(4, 40000), func(ctx context.Context, _, _, i int) error {
		found, err := b.store.list(ctx, fmt.Sprintf("%s%03d/", keyPrefix, i%directories), "", 0)
		return load.Expect(found, listKeys, err)
	})
}

func (b *bench) page(ctx context.Context) (load.Result, error) {
	return load.Drive(ctx, b.limits(4, 20000), func(ctx context.Context, _, _, i int) error {
		// Any page but the last ones, which are shorter.
		from := b.keys[i*listKeys%(len(b.keys)-pageKeys)]
		found, err := b.store.list(ctx, keyPrefix, from, pageKeys)
		return load.Expect(found, pageKeys, err)
	})
}

func (b *bench) first(ctx context.Context) (load.Result, error) {
	return load.Drive(ctx, b.limits(4, 200000), func(ctx context.Context, _, _, _ int) error {
		found, err := b.store.list(ctx, keyPrefix, "", 1)
		return load.Expect(found, 1, err)
	})
}

func (b *bench) count(ctx context.Context) (load.Result, error) {
	return load.Drive(ctx, b.limits(4, 200000), func(ctx context.Context, _, _, _ int) error {
		found, err := b.store.count(ctx, keyPrefix)
		return load.Expect(int(found), len(b.keys), err)
	})
}

func (b *bench) watch(watchers, puts, streams int) func(context.Context) (load.Result, error) {
	return func(ctx context.Context) (load.Result, error) {
		watch := func(ctx context.Context) (func() ([]int64, error), error) {
			return b.store.watch(ctx, keyPrefix, streams)
		}
		return load.FanOut(ctx, watch, watchers, max(1, puts/b.plan.Part), b.plan.Most, func(ctx context.Context, n int) (int64, error) {
			key := n % len(b.keys)
			err := b.put(ctx, key, n)
			return b.revisions[key], err
		})
	}
}

func (b *bench) remove(ctx context.Context) (load.Result, error) {
	return load.Drive(ctx, load.Limits{Clients: 16, Ops: len(b.keys), Most: mostCreate}, func(ctx context.Context, _, _, i int) error {
		return b.store.remove(ctx, b.keys[i], b.revisions[i])
	})
}

// compact compacts the history of the peer, and measures the disk space before and after it.
func (b *bench) compact(ctx context.Context, r *round) (err error) {
	if r.DiskWritten, err = machine.DiskBytes(b.dir); err != nil {
		return err
	}
	if err := b.store.compact(ctx); err != nil {
		return err
	}
	if r.DiskCompacted, err = machine.SettledDisk(ctx, b.dir); err != nil {
		return err
	}
	info, err := os.Stat(filepath.Join(b.dir, b.file))
	if err != nil {
		return fmt.Errorf("read size of the database: %w", err)
	}
	r.Database = info.Size()
	// A compaction that frees no pages leaves SQLite's newest pages in the WAL.
	if info, err := os.Stat(filepath.Join(b.dir, b.file) + "-wal"); err == nil {
		r.Database += info.Size()
	}
	return nil
}

// cpu is the CPU time of the peer, and of the peer and its client together.
func (b *bench) cpu() (peer, all time.Duration, err error) {
	if peer, err = machine.CPUTime(b.peer); err != nil {
		return 0, 0, err
	}
	if b.peer == machine.OwnPID {
		return peer, peer, nil
	}
	own, err := machine.CPUTime(machine.OwnPID)
	return peer, peer + own, err
}
