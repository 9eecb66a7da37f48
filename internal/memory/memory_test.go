package memory

import (
	"errors"
	"io/fs"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/karve-k8s/karve/internal/eventually"
)

func TestLimit(t *testing.T) {
	for text, want := range map[string]int64{
		"100663296": Least, "98304Ki": Least, "200Mi": 200 << 20, "3Gi": 3 << 30, "200M": 200e6, "1.5Gi": 3 << 29,
	} {
		if got, err := Limit(text); got != want || err != nil {
			t.Errorf("Limit(%q): got %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "a lot", "200MB", "200 Mi"} {
		if got, err := Limit(text); !errors.Is(err, ErrSize) {
			t.Errorf("Limit(%q): got %d, %v, want %v", text, got, err, ErrSize)
		}
	}
	for _, text := range []string{"95Mi", "-200Mi", "0", "Mi"} {
		if got, err := Limit(text); err == nil || errors.Is(err, ErrSize) {
			t.Errorf("Limit(%q): got %d, %v, want an error that names the least", text, got, err)
		}
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

func collections() uint32 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.NumForcedGC
}

// await fails the test if no memory is returned after before.
func await(t *testing.T, what string, before uint32) {
	t.Helper()
	eventually.Nil(t, what+" is returned", func() error {
		if collections() == before {
			return errors.New("no forced collection")
		}
		return nil
	})
}

// A machine with much memory collects less often than a small one, and End restores everything.
func TestCollector(t *testing.T) {
	t.Setenv("GOGC", "")
	percentBefore, limitBefore := settings()
	running := map[int64]int{}
	for _, limit := range []int64{Least, 12 << 30} {
		c := Begin(limit, false)
		before := collections()
		c.settle(0, time.Millisecond, time.Hour)
		await(t, "the memory of the start", before)
		percent, got := settings()
		if running[limit] = percent; got != limit {
			t.Errorf("limit: got %d, want %d", got, limit)
		}
		c.End()
		if percent, limit := settings(); percent != percentBefore || limit != limitBefore {
			t.Errorf("after End: got %d %%, limit %d, want %d and %d", percent, limit, percentBefore, limitBefore)
		}
	}
	if running[Least] >= running[12<<30] {
		t.Errorf("got %d %% on a small machine, and %d on a large one", running[Least], running[12<<30])
	}
}

func TestTheUsersGOGCWins(t *testing.T) {
	t.Setenv("GOGC", "33")
	defer debug.SetGCPercent(debug.SetGCPercent(33)) // as the runtime does with the variable
	c := Begin(300<<20, true)
	for _, step := range []func(){func() {}, func() { c.Settle(0) }, c.End} {
		if step(); c.end != nil {
			t.Fatal("memory is returned although GOGC is set")
		}
		if percent, _ := settings(); percent != 33 {
			t.Errorf("got %d %%, want 33", percent)
		}
	}
}

func TestNothingIsReturnedBeforeSettleAfter(t *testing.T) {
	c := Begin(NoLimit, true)
	before := collections()
	c.settle(time.Hour, time.Nanosecond, time.Nanosecond)
	c.End()
	if n := collections() - before; n != 0 {
		t.Errorf("%d forced collections during the start", n)
	}
}

// What a burst of work leaves is returned in a lull.
func TestMemoryOfABurst(t *testing.T) {
	c := Begin(1<<30, false)
	defer c.End()
	c.settle(0, time.Millisecond, 10*time.Millisecond)
	before := collections()
	for n := uint32(1); n <= rests; n++ {
		await(t, "the memory of the start", before+n-1)
	}
	before = collections()
	burst = make([]byte, 4*worth)
	burst = nil
	await(t, "the memory of the burst", before)
}

var burst []byte // keeps the compiler from allocating on the stack
