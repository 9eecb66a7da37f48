package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/karve-k8s/karve/bench/load"
	"github.com/karve-k8s/karve/bench/machine"
	"github.com/karve-k8s/karve/bench/report"
	"github.com/karve-k8s/karve/datastore"
)

// A scalePlan says how many keys, reads and revisions there are.
type scalePlan struct {
	few, many int // keys of 1 KB that counts and lists are compared at
	reads     int // of each kind
	revisions int // of one compaction
}

var (
	fullScale  = scalePlan{few: 1000, many: 100000, reads: 2000, revisions: 1000000}
	quickScale = scalePlan{few: 1000, many: 20000, reads: 500, revisions: 50000}
)

// scaling measures the engine in this process, with the default options of a server.
type scaling struct {
	plan   scalePlan
	dir    string
	stderr io.Writer
	lines  report.Table

	figures *report.Record
	row     string // the last one that has a name
}

// add adds a line. A line without a row has another figure of the row before it.
func (s *scaling) add(row, unit string, value float64, want report.Target) {
	if row != "" {
		s.row = row
	}
	s.figures.Add(s.row, "karve", value, unit)
	s.lines = append(s.lines, []string{row, unit, report.Number(value), want.String(), want.Mark(value, nil)})
	fmt.Fprintf(s.stderr, "%-44s %12s %s\n", row, report.Number(value), unit)
}

// Scale is the command bench scale.
func Scale(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := newOptions("scale", "fewer keys and revisions; takes some seconds", stderr)
	if err := o.parse(args); err != nil {
		return err
	}
	plan := fullScale
	if o.quick {
		plan = quickScale
	}
	work, machine, err := machine.WorkPlace(o.dir)
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	s := &scaling{plan: plan, dir: work, stderr: stderr, figures: report.NewRecord("scale", machine, args, 0)}
	if err := s.measure(ctx); err != nil {
		return err
	}
	return o.Write(stdout, &report.LineReport{
		Head:    fmt.Sprintf("%s\nthe engine in this process; values of %d bytes; %d keys unless a line says otherwise\n", machine, valueBytes, plan.many),
		Lines:   append(report.Table{{"", "", "", "target", ""}}, s.lines...),
		Figures: s.figures,
	})
}

func (s *scaling) measure(ctx context.Context) error {
	few, err := s.reads(ctx, s.plan.few, false)
	if err != nil {
		return err
	}
	many, err := s.reads(ctx, s.plan.many, true)
	if err != nil {
		return err
	}
	for i, name := range []string{"count", "list with limit 1"} {
		s.add(fmt.Sprintf("%s, %d keys", name, s.plan.few), "p50 us", few[i], report.Target{})
		s.add(fmt.Sprintf("%s, %d keys", name, s.plan.many), "p50 us", many[i], report.Target{})
		s.add(name+", ratio of these", "×", many[i]/few[i], report.AtMost(3))
	}
	return s.compaction(ctx)
}

// reads fills a store, and returns how long a count and a list with a limit take, in
// microseconds. With all, it also measures starts, memory and pages.
func (s *scaling) reads(ctx context.Context, keys int, all bool) (p50 [2]float64, err error) {
	dir := filepath.Join(s.dir, fmt.Sprint("reads-", keys))
	b := &bench{plan: plan{Keys: keys}}
	b.prepare()
	engine, closeEngine, err := openEngine(dir)
	if err != nil {
		return p50, err
	}
	if err := s.fill(ctx, engine, b); err != nil {
		closeEngine()
		return p50, err
	}
	if all {
		killed := dir + "-killed"
		err := copyStore(dir, killed)
		closeEngine()
		if err != nil {
			return p50, err
		}
		if _, closeEngine, err = s.start("start after a kill", killed); err != nil {
			return p50, err
		}
		closeEngine()
		if engine, closeEngine, err = s.start("start after a stop", dir); err != nil {
			return p50, err
		}
		s.memory(engine)
	}
	defer closeEngine()
	b.store = direct{engine}
	if all {
		pages, err := load.Drive(ctx, load.Limits{Clients: 1, Ops: s.plan.reads, Most: time.Minute}, func(ctx context.Context, _, _, i int) error {
			found, err := b.store.list(ctx, keyPrefix, b.keys[i*7919%(keys-pageKeys)], pageKeys)
			return load.Expect(found, pageKeys, err)
		})
		if err != nil {
			return p50, err
		}
		s.add("page of 500", "p50 ms", pages.P50, report.AtMost(5))
		s.add("", "p99 ms", pages.P99, report.Target{})
	}
	for i, read := range []func(context.Context) error{
		func(ctx context.Context) error {
			found, err := b.store.count(ctx, keyPrefix)
			return load.Expect(int(found), keys, err)
		},
		func(ctx context.Context) error {
			found, err := b.store.list(ctx, keyPrefix, "", 1)
			return load.Expect(found, 1, err)
		},
	} {
		res, err := load.Drive(ctx, load.Limits{Clients: 1, Ops: 10 * s.plan.reads, Most: time.Minute}, func(ctx context.Context, _, _, _ int) error { return read(ctx) })
		if err != nil {
			return p50, err
		}
		p50[i] = res.P50 * 1000
	}
	return p50, nil
}

// fill puts every key, many in one transaction.
func (s *scaling) fill(ctx context.Context, engine *datastore.Engine, b *bench) error {
	const together = 500
	for from := 0; from < len(b.keys); from += together {
		var ops []datastore.Op
		for i := from; i < min(from+together, len(b.keys)); i++ {
			ops = append(ops, datastore.Op{Put: &datastore.PutRequest{Key: b.keys[i], Value: b.value(i)}})
		}
		if _, err := engine.Txn(ctx, datastore.TxnRequest{Then: ops}); err != nil {
			return err
		}
	}
	return nil
}

// copyStore copies an idle store as a kill would have left it.
func copyStore(from, to string) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	for _, name := range []string{datastore.EngineFile, datastore.EngineFile + "-wal"} {
		if err := copyFile(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// start measures how long it takes to open an existing store.
func (s *scaling) start(row, dir string) (*datastore.Engine, func(), error) {
	debug.FreeOSMemory()
	began := time.Now()
	engine, closeEngine, err := openEngine(dir)
	if err == nil {
		s.add(row, "s", time.Since(began).Seconds(), report.AtMost(2))
	}
	return engine, closeEngine, err
}

func (s *scaling) memory(engine *datastore.Engine) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	stats := engine.Stats()
	const mb = 1 << 20
	s.add("live keys and values", "MiB", float64(stats.LiveBytes)/mb, report.Target{})
	s.add("values in memory", "MiB", float64(stats.CacheBytes)/mb, report.AtMost(64))
	s.add("other memory, of a key", "B", float64(int64(m.HeapAlloc)-stats.CacheBytes)/float64(stats.Keys), report.Target{})
}

// compaction writes revisions and compacts all of them while clients write. The clients write
// alone before that, which shows the pauses of the machine itself.
func (s *scaling) compaction(ctx context.Context) error {
	engine, closeEngine, err := openEngine(filepath.Join(s.dir, "compaction"))
	if err != nil {
		return err
	}
	defer closeEngine()
	value := make([]byte, 200)
	_, err = load.Drive(ctx, load.Limits{Clients: 64, Ops: s.plan.revisions, Most: time.Hour}, func(ctx context.Context, _, _, i int) error {
		_, err := engine.Put(ctx, datastore.PutRequest{Key: fmt.Sprintf("%s%d", keyPrefix, i*7919%10000), Value: value})
		return err
	})
	if err != nil {
		return err
	}
	alone := time.After(2 * time.Second)
	if err := s.writers(ctx, engine, "write, without a compaction", report.Target{}, func() error { <-alone; return nil }); err != nil {
		return err
	}
	name := fmt.Sprintf("compaction of %d revisions", s.plan.revisions)
	began := time.Now()
	err = s.writers(ctx, engine, "write, beside a compaction", report.AtMost(50), func() error {
		return engine.Compact(ctx, engine.Revision(), true)
	})
	s.add(name, "s", time.Since(began).Seconds(), report.Target{})
	return err
}

// writers puts keys with four clients until work is done, and measures the latencies.
func (s *scaling) writers(ctx context.Context, engine *datastore.Engine, row string, stall report.Target, work func() error) error {
	const clients = 4
	var done atomic.Bool
	var group sync.WaitGroup
	result := make(chan error, 1)
	go func() { result <- work(); done.Store(true) }()
	samples, failed := make([][]time.Duration, clients), make([]error, clients)
	wal := make([]int64, clients)
	began := time.Now()
	for c := range clients {
		group.Go(func() {
			for i := 0; !done.Load() && failed[c] == nil; i++ {
				asked := time.Now()
				_, failed[c] = engine.Put(ctx, datastore.PutRequest{Key: fmt.Sprintf("%sprobe/%d", keyPrefix, c), Value: make([]byte, valueBytes)})
				samples[c] = append(samples[c], time.Since(asked))
				if i%50 == 0 {
					wal[c] = max(wal[c], engine.Stats().WALBytes)
				}
			}
		})
	}
	group.Wait()
	if err := errors.Join(append(failed, <-result)...); err != nil {
		return err
	}
	var took []time.Duration
	for _, of := range samples {
		took = append(took, of...)
	}
	res := load.Summarise(took, time.Since(began))
	s.add(row, "p50 ms", res.P50, report.Target{})
	s.add("", "p99 ms", res.P99, report.Target{})
	s.add("", "max ms", load.Milliseconds(took[len(took)-1]), stall)
	s.add("WAL, at most", "MiB", float64(max(wal[0], wal[1], wal[2], wal[3]))/(1<<20), report.AtMost(16))
	return nil
}
