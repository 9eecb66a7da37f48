package load

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/karve-k8s/karve/test/durability"
)

// A sample has what was measured at one time. Figures are by the names of the columns.
type sample struct {
	Seconds float64            `json:"seconds"` // since the start of the run
	InLife  float64            `json:"inLife"`  // since the start of the server
	Life    int                `json:"life"`
	Figures map[string]float64 `json:"figures"`
}

// columns are the figures of a sample, in the order of the table.
var columns = []struct{ name, unit string }{
	{"RSS", "MB"},
	{"anonymous memory", "MB"},
	{"live heap", "MB"},
	{"goroutines", ""},
	{"open files", ""},
	{"WAL", "MB"},
	{"database file", "MB"},
	{"writes", "/s"},
	{"write p50", "ms"},
	{"write p99", "ms"},
	{"read p50", "ms"},
	{"read p99", "ms"},
	{"CPU of the server", "%"},
	{"CPU of other processes", "%"},
}

// measure takes samples until ctx ends, and prints a line every minute.
func (s *soak) measure(ctx context.Context, api *durability.API, life int) {
	s.times.take()
	began, told := time.Now(), time.Now()
	before := readCPU(s.server.PID())
	for last := began; pause(ctx, s.sample); {
		now := time.Now()
		one := sample{now.Sub(s.began).Seconds(), now.Sub(began).Seconds(), life, map[string]float64{}}
		if err := s.look(ctx, api, one.Figures); err != nil {
			if ctx.Err() == nil {
				s.say("a sample failed: %v", err)
			}
			continue
		}
		writes, reads := s.times.take()
		one.Figures["writes"] = float64(len(writes)) / now.Sub(last).Seconds()
		one.Figures["write p50"], one.Figures["write p99"] = milliseconds(quantile(writes, 0.5)), milliseconds(quantile(writes, 0.99))
		one.Figures["read p50"], one.Figures["read p99"] = milliseconds(quantile(reads, 0.5)), milliseconds(quantile(reads, 0.99))
		cpu := readCPU(s.server.PID())
		one.Figures["CPU of the server"], one.Figures["CPU of other processes"] = cpu.since(before, now.Sub(last))
		before, last = cpu, now
		s.mu.Lock()
		s.samples = append(s.samples, one)
		s.mu.Unlock()
		if now.Sub(told) >= time.Minute {
			told = now
			f := one.Figures
			s.say("life %d: %d writes acknowledged; RSS %.0f MB, live heap %.1f MB, %.0f goroutines, WAL %.1f MB, file %.1f MB; writes %.0f/s, p50 %.1f, p99 %.1f ms; others use %.0f %% of the machine",
				life+1, s.journal.Acks(), f["RSS"], f["live heap"], f["goroutines"], f["WAL"], f["database file"], f["writes"], f["write p50"], f["write p99"], f["CPU of other processes"])
		}
	}
}

// look reads the server's figures.
func (s *soak) look(ctx context.Context, api *durability.API, into map[string]float64) error {
	page, err := api.Metrics(ctx)
	if err != nil {
		return err
	}
	const mb = 1e6
	for _, m := range []struct {
		column, metric string
		unit           float64
	}{
		{"live heap", "go_gc_heap_live_bytes", mb},
		{"goroutines", "go_goroutines", 1},
		{"open files", "process_open_fds", 1},
	} {
		value, err := metric(page, m.metric)
		if err != nil {
			return err
		}
		into[m.column] = value / m.unit
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.server.PID()))
	if err != nil {
		return err
	}
	for column, field := range map[string]string{"RSS": "VmRSS:", "anonymous memory": "RssAnon:"} {
		for line := range strings.Lines(string(status)) {
			if rest, ok := strings.CutPrefix(line, field); ok {
				kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
				if err != nil {
					return err
				}
				into[column] = kib * 1024 / mb
			}
		}
	}
	for column, name := range map[string]string{"database file": "", "WAL": "-wal"} {
		info, err := os.Stat(s.server.Database() + name)
		if err != nil {
			return err
		}
		into[column] = float64(info.Size()) / mb
	}
	return nil
}

// metric reads a value without labels from a page in Prometheus' text format.
func metric(page []byte, name string) (float64, error) {
	for line := range strings.Lines(string(page)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(rest), 64)
		}
	}
	return 0, fmt.Errorf("the server has no metric %s", name)
}

// cpuTime is the CPU time used so far, in clock ticks.
type cpuTime struct{ machine, server, self float64 }

// ticks is the kernel's USER_HZ, which is 100 on every architecture of Linux.
const ticks = 100

// readCPU reads the CPU time. A value that cannot be read is 0.
func readCPU(pid int) (t cpuTime) {
	if text, err := os.ReadFile("/proc/stat"); err == nil {
		line, _, _ := strings.Cut(string(text), "\n")
		for i, field := range strings.Fields(line) {
			// user nice system idle iowait irq softirq steal; guest is in user
			if i >= 1 && i <= 8 && i != 4 && i != 5 {
				value, _ := strconv.ParseFloat(field, 64)
				t.machine += value
			}
		}
	}
	t.server, t.self = processCPU(strconv.Itoa(pid)), processCPU("self")
	return t
}

func processCPU(pid string) float64 {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return user + system
}

// since returns the CPU time of the server as a percentage of one processor, and that of other
// processes as a percentage of the machine.
func (t cpuTime) since(before cpuTime, took time.Duration) (server, others float64) {
	wall := took.Seconds() * ticks
	server = (t.server - before.server) / wall * 100
	others = (t.machine - before.machine - (t.server - before.server) - (t.self - before.self)) / wall / float64(processors()) * 100
	return server, max(others, 0)
}

// processors is the number of the machine's processors. runtime.NumCPU may be smaller.
func processors() int {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 1
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		if len(line) > 3 && strings.HasPrefix(line, "cpu") && line[3] >= '0' && line[3] <= '9' {
			n++
		}
	}
	return max(n, 1)
}
