package memory

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/karve-k8s/karve/internal/eventually"
)

func TestLimit(t *testing.T) {
	for text, want := range map[string]int64{
		"100663296": Least, "98304Ki": Least, "200Mi": 200 << 20, "3Gi": 3 << 30,
	} {
		if got, err := Limit(text); got != want || err != nil {
			t.Errorf("Limit(%q): got %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "Mi", "a lot", "1.5Gi", "-200Mi", "200MB", "200M", "9223372036854775807Ki", "200 Mi"} {
		if got, err := Limit(text); !errors.Is(err, ErrSize) {
			t.Errorf("Limit(%q): got %d, %v, want %v", text, got, err, ErrSize)
		}
	}
	if got, err := Limit("95Mi"); err == nil || errors.Is(err, ErrSize) {
		t.Errorf("Limit of less than the least: got %d, %v, want an error that names it", got, err)
	}
}

func TestAutoIsTheUsersGOMEMLIMIT(t *testing.T) {
	before := debug.SetMemoryLimit(123 << 20) // as the runtime does with the variable
	defer debug.SetMemoryLimit(before)
	t.Setenv("GOMEMLIMIT", "123MiB")
	if got, err := Limit(Auto); got != 123<<20 || err != nil {
		t.Errorf("got %d, %v, want %d", got, err, 123<<20)
	}
}

func TestChoose(t *testing.T) {
	const meminfo, self = "/proc/meminfo", "/proc/self/cgroup"
	const twoGi = "MemTotal:        2097152 kB\nMemFree:          1024 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"nothing is known":     {nil, NoLimit},
		"a machine":            {map[string]string{meminfo: twoGi}, 1 << 30},
		"a very small machine": {map[string]string{meminfo: "MemTotal: 65536 kB\n"}, Least},
		"version 2": {map[string]string{meminfo: twoGi, self: "0::/system.slice/karve.service\n",
			"/sys/fs/cgroup/system.slice/karve.service/memory.max": "max\n",
			"/sys/fs/cgroup/system.slice/memory.max":               "209715200\n",
			"/sys/fs/cgroup/memory.max":                            "1073741824\n"}, 167772160},
		"version 2, a container": {map[string]string{meminfo: twoGi, self: "0::/../../seen/from/outside\n",
			"/sys/fs/cgroup/memory.max": "209715200\n"}, 167772160},
		"a group with more than the machine has": {map[string]string{meminfo: twoGi, self: "0::/\n",
			"/sys/fs/cgroup/memory.max": "8589934592\n"}, 1 << 30},
		"version 1": {map[string]string{meminfo: twoGi, self: "5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/a\n",
			"/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712\n",
			"/sys/fs/cgroup/memory/a/memory.limit_in_bytes":   "209715200\n"}, 167772160},
		"version 1 without a limit": {map[string]string{meminfo: twoGi, self: "4:memory:/\n",
			"/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 1 << 30},
		"nonsense": {map[string]string{meminfo: "MemTotal: much\n", self: "::\nx\n4:memory\n"}, NoLimit},
	} {
		got := choose(func(path string) ([]byte, error) {
			if text, ok := c.files[path]; ok {
				return []byte(text), nil
			}
			return nil, fs.ErrNotExist
		})
		if got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}

// settings returns the collector's percent and limit.
func settings() (int, int64) {
	percent := debug.SetGCPercent(100)
	debug.SetGCPercent(percent)
	return percent, debug.SetMemoryLimit(-1)
}

// After Settle, a server has room for work: many clusters are used as soon as they are ready.
func TestCollector(t *testing.T) {
	is := func(want int) func(int) bool { return func(got int) bool { return got == want } }
	forWork := func(percent int) bool { return percent > 2*restPercent } // the test's heap is far smaller than the room
	runtime.GC()
	for _, test := range []struct {
		gogc  string
		hasty bool
		start int
		rest  func(percent int) bool
	}{
		{"", false, startPercent, forWork},
		{"", true, hastyPercent, forWork},
		{"33", false, 100, is(100)},
		{"33", true, 100, is(100)},
	} {
		t.Setenv("GOGC", test.gogc)
		debug.SetGCPercent(100)
		_, before := settings()
		const limit = 300 << 20
		check := func(when string, want func(int) bool, wantLimit int64) {
			t.Helper()
			if p, l := settings(); !want(p) || l != wantLimit {
				t.Errorf("GOGC %q, hasty %t, %s: got %d %%, limit %d (want %d)", test.gogc, test.hasty, when, p, l, wantLimit)
			}
		}
		c := Begin(limit, test.hasty)
		check("after Begin", is(test.start), limit)
		c.Settle(0)
		check("after Settle", test.rest, limit)
		c.End()
		check("after End", is(100), before)
	}
}

// What the start has left is returned in the first quiet moment, with or without plenty of memory, and not
// before the server is to settle.
func TestMemoryOfAStart(t *testing.T) {
	forced := func() uint32 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.NumForcedGC
	}
	for _, limit := range []int64{Least, NoLimit} {
		c := Begin(limit, true)
		before := forced()
		c.watch(time.Hour, time.Nanosecond, time.Hour)
		c.End()
		if n := forced() - before; n != 0 {
			t.Errorf("limit %d: %d forced collections during the start", limit, n)
		}
		c = Begin(limit, false)
		c.watch(0, 10*time.Millisecond, time.Hour)
		eventually.Nil(t, "the memory of the start is returned", func() error {
			if forced() == before {
				return errors.New("no forced collection")
			}
			return nil
		})
		c.End()
	}
}

// A collection has to return more where it costs more.
func TestCollectionPays(t *testing.T) {
	for _, test := range []struct {
		spare, live uint64
		want        bool
	}{
		{worth, 0, false}, {worth + 1, 0, true}, {worth + 1, share * worth, true}, {worth + 1, 1 << 30, false}, {1<<30/share + 1, 1 << 30, true},
	} {
		if got := pays(test.spare, test.live); got != test.want {
			t.Errorf("%d bytes beside %d live ones: got %v, want %v", test.spare, test.live, got, test.want)
		}
	}
}

// What a burst of work leaves is returned once nothing else collects it.
func TestMemoryOfABurst(t *testing.T) {
	t.Setenv("GOGC", "off")                          // the collector leaves the target alone
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // no other collections
	await := func(what string, done func(cycles, spare uint64) bool) {
		t.Helper()
		eventually.Nil(t, what, func() error {
			cycles, spare, _ := heap()
			if !done(cycles, spare) {
				return fmt.Errorf("%d collections, %d bytes could be given back", cycles, spare)
			}
			return nil
		})
	}
	c := Begin(1<<30, false)
	defer c.End()
	before, _, _ := heap()
	c.watch(0, 10*time.Millisecond, 10*time.Millisecond)
	await("the first look", func(cycles, _ uint64) bool { return cycles > before })
	before, _, _ = heap()
	burst := make([]byte, 4*worth)
	await("the look after a burst", func(cycles, spare uint64) bool { return cycles > before && spare < worth })
	runtime.KeepAlive(burst)
}
