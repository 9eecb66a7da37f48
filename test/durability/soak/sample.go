package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/karve-k8s/karve/test/bench/load"
	"github.com/karve-k8s/karve/test/bench/machine"
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
}

// measure takes samples until ctx ends, and prints a line every minute.
func (s *soak) measure(ctx context.Context, api *durability.API, life int) {
	s.times.take()
	began, told := time.Now(), time.Now()
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
		one.Figures["write p50"], one.Figures["write p99"] = load.Milliseconds(load.Quantile(writes, 0.5)), load.Milliseconds(load.Quantile(writes, 0.99))
		one.Figures["read p50"], one.Figures["read p99"] = load.Milliseconds(load.Quantile(reads, 0.5)), load.Milliseconds(load.Quantile(reads, 0.99))
		last = now
		s.mu.Lock()
		s.samples = append(s.samples, one)
		s.mu.Unlock()
		if now.Sub(told) >= time.Minute {
			told = now
			f := one.Figures
			s.say("life %d: %d writes acknowledged; RSS %.0f MB, live heap %.1f MB, %.0f goroutines, WAL %.1f MB, file %.1f MB; writes %.0f/s, p50 %.1f, p99 %.1f ms",
				life+1, s.journal.Acks(), f["RSS"], f["live heap"], f["goroutines"], f["WAL"], f["database file"], f["writes"], f["write p50"], f["write p99"])
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
	for column, read := range map[string]func(pid int) (int64, error){"RSS": machine.ResidentMemory, "anonymous memory": machine.AnonymousMemory} {
		bytes, err := read(s.server.PID())
		if err != nil {
			return err
		}
		into[column] = float64(bytes) / mb
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
