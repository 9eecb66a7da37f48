package datastore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// latencies collects durations and reports their percentiles.
type latencies struct {
	mu  sync.Mutex
	all []time.Duration
}

func (l *latencies) add(d time.Duration) {
	l.mu.Lock()
	l.all = append(l.all, d)
	l.mu.Unlock()
}

func (l *latencies) report(b *testing.B) {
	if len(l.all) == 0 {
		return
	}
	slices.Sort(l.all)
	at := func(p float64) float64 {
		return float64(l.all[min(len(l.all)-1, int(float64(len(l.all))*p))].Microseconds())
	}
	b.ReportMetric(at(.5), "p50-us")
	b.ReportMetric(at(.99), "p99-us")
	b.ReportMetric(float64(l.all[len(l.all)-1].Microseconds()), "max-us")
}

// fill puts n keys with values of 1 KB and returns their names.
func fill(b testing.TB, e *Engine, n int) []string {
	names := make([]string, n)
	for begin := 0; begin < n; begin += 500 {
		var ops []Op
		for i := begin; i < min(n, begin+500); i++ {
			names[i] = fmt.Sprintf("/registry/pods/default/%06d", i)
			ops = append(ops, Op{Put: &PutRequest{Key: names[i], Value: make([]byte, 1024)}})
		}
		if _, err := e.Txn(context.Background(), TxnRequest{Then: ops}); err != nil {
			b.Fatal(err)
		}
	}
	return names
}

// BenchmarkFsync measures the lower bound of a durable write on this machine: 4 KiB appended and
// synced.
func BenchmarkFsync(b *testing.B) {
	f, err := os.Create(filepath.Join(b.TempDir(), "f"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	var took latencies
	page := make([]byte, 4096)
	for b.Loop() {
		begin := time.Now()
		if _, err := f.Write(page); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		took.add(time.Since(begin))
	}
	took.report(b)
}

// BenchmarkUpdate measures a guarded update of 1 KB, as the API server makes it.
func BenchmarkUpdate(b *testing.B) {
	for _, mode := range []Durability{Full, Relaxed, Memory} {
		for _, clients := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("%v/%d", mode, clients), func(b *testing.B) {
				e := openTest(b, b.TempDir(), Options{Durability: mode})
				names := fill(b, e, 3000)
				var took latencies
				var left atomic.Int64
				work := make(chan struct{})
				var group sync.WaitGroup
				for c := range clients {
					group.Go(func() {
						mine := make([]time.Duration, 0, 1024)
						revision := make(map[string]int64)
						for i := 0; ; i++ {
							if _, more := <-work; !more {
								break
							}
							name := names[(c+i*clients)%(len(names)/clients*clients)]
							at := revision[name]
							if at == 0 {
								at = get(b, e, name, 0).ModRevision
							}
							begin := time.Now()
							resp, err := e.Txn(context.Background(), TxnRequest{
								Compare: []Compare{{Key: name, Target: CompareModRevision, Number: at}},
								Then:    []Op{{Put: &PutRequest{Key: name, Value: make([]byte, 1024)}}},
								Else:    []Op{{Range: &RangeRequest{Key: name}}},
							})
							if err != nil || !resp.Succeeded {
								b.Errorf("update of %s: %+v, %v", name, resp, err)
								return
							}
							mine = append(mine, time.Since(begin))
							revision[name] = resp.Revision
						}
						for _, d := range mine {
							took.add(d)
						}
						left.Add(1)
					})
				}
				for b.Loop() {
					work <- struct{}{}
				}
				close(work)
				group.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
				took.report(b)
				if e.file != nil {
					b.ReportMetric(float64(e.file.WALBytes())/(1<<20), "wal-MB")
					if n := e.file.WALBytes(); n > 16<<20 {
						b.Errorf("WAL: %d bytes, the limit is %d", n, 16<<20)
					}
				}
			})
		}
	}
}

func BenchmarkGet(b *testing.B) {
	e := openTest(b, b.TempDir(), Options{})
	names := fill(b, e, 3000)
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if get(b, e, names[i*7%len(names)], 0) == nil {
				b.Error("missing")
			}
		}
	})
}

func BenchmarkList(b *testing.B) {
	e := openTest(b, b.TempDir(), Options{})
	fill(b, e, 3000)
	for b.Loop() {
		resp, err := e.Range(b.Context(), RangeRequest{Key: "/registry/pods/default/001", End: "/registry/pods/default/002", Limit: 150})
		if err != nil || len(resp.KVs) != 150 {
			b.Fatal(len(resp.KVs), err)
		}
	}
}

func BenchmarkCount(b *testing.B) {
	for _, n := range []int{3000, 100000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e := openTest(b, b.TempDir(), Options{Durability: Memory})
			fill(b, e, n)
			for b.Loop() {
				resp, err := e.Range(b.Context(), RangeRequest{Key: "/registry/pods/", End: PrefixEnd("/registry/pods/"), CountOnly: true})
				if err != nil || resp.Count != int64(n) {
					b.Fatal(resp, err)
				}
			}
		})
	}
}

// BenchmarkPutToWatch measures the time from the start of a put until a watcher has its event. That
// includes the durable commit.
func BenchmarkPutToWatch(b *testing.B) {
	e := openTest(b, b.TempDir(), Options{})
	w, err := e.Watch(WatchRequest{Key: "/w/", End: PrefixEnd("/w/")})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	seen := make(chan time.Time)
	go func() {
		for {
			resp, err := w.Next(b.Context())
			if err != nil {
				return
			}
			for range resp.Events {
				seen <- time.Now()
			}
		}
	}()
	var took latencies
	for b.Loop() {
		begin := time.Now()
		put(b, e, "/w/a", "v")
		took.add((<-seen).Sub(begin))
	}
	took.report(b)
}

// BenchmarkOpen measures a start with 100,000 keys of 1 KB. It verifies every checksum.
func BenchmarkOpen(b *testing.B) {
	for _, how := range []string{"clean", "killed"} {
		b.Run(how, func(b *testing.B) { benchmarkOpen(b, how == "clean") })
	}
}

func benchmarkOpen(b *testing.B, clean bool) {
	stop := func(e *Engine) {
		if !clean {
			crash(b, e)
		} else if err := e.Close(); err != nil {
			b.Fatal(err)
		}
	}
	dir := b.TempDir()
	e, lock := openLocked(b, dir, Options{})
	fill(b, e, 100000)
	stop(e)
	lock.Close()
	for b.Loop() {
		e, lock := openLocked(b, dir, Options{})
		b.StopTimer()
		if n := e.Stats().Keys; n != 100000 {
			b.Fatal(n)
		}
		stop(e)
		lock.Close()
		b.StartTimer()
	}
}

// BenchmarkListPage measures a page of 500 of 100,000 keys of 1 KB. Most values are on the disk.
// The second page reads at the revision of the first.
func BenchmarkListPage(b *testing.B) {
	e := openTest(b, b.TempDir(), Options{})
	names := fill(b, e, 100000)
	var after runtime.MemStats
	begin := 0
	for b.Loop() {
		at := names[begin%(len(names)-500)]
		begin += 500
		resp, err := e.Range(b.Context(), RangeRequest{Key: at, End: PrefixEnd("/registry/pods/"), Limit: 500})
		if err != nil || len(resp.KVs) != 500 {
			b.Fatal(resp, err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc)/(1<<20), "heap-MB")
}

// BenchmarkFanOut measures the time from a durable put until the last of many watchers has its
// event.
func BenchmarkFanOut(b *testing.B) {
	for _, watchers := range []int{50, 500} {
		b.Run(fmt.Sprint(watchers), func(b *testing.B) {
			e := openTest(b, b.TempDir(), Options{})
			var group sync.WaitGroup
			for range watchers {
				w, err := e.Watch(WatchRequest{Key: "/w/", End: PrefixEnd("/w/"), PrevKV: true})
				if err != nil {
					b.Fatal(err)
				}
				defer w.Close()
				go func() {
					for {
						resp, err := w.Next(context.Background())
						if err != nil {
							return
						}
						for range resp.Events {
							group.Done()
						}
					}
				}()
			}
			var took latencies
			for b.Loop() {
				begin := time.Now()
				group.Add(watchers)
				put(b, e, "/w/a", "v")
				group.Wait()
				took.add(time.Since(begin))
			}
			took.report(b)
		})
	}
}
