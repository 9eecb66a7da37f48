package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/karve-k8s/karve/test/bench/machine"
	"github.com/karve-k8s/karve/test/durability"
)

// A sample has what was measured at one time. Figures are by the names of the columns.
type sample struct {
	at      time.Duration // since the start
	figures map[string]float64
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
}

// measure takes samples until ctx ends, and prints a line every minute.
func (s *soak) measure(ctx context.Context, api *durability.API) {
	began, told := time.Now(), time.Now()
	for pause(ctx, s.sample) {
		one := sample{time.Since(began), map[string]float64{}}
		if err := s.look(ctx, api, one.figures); err != nil {
			if ctx.Err() == nil {
				s.say("a sample failed: %v", err)
			}
			continue
		}
		s.mu.Lock()
		s.samples = append(s.samples, one)
		s.mu.Unlock()
		if time.Since(told) >= time.Minute {
			told = time.Now()
			f := one.figures
			s.say("RSS %.0f MB, live heap %.1f MB, %.0f goroutines, WAL %.1f MB, file %.1f MB",
				f["RSS"], f["live heap"], f["goroutines"], f["WAL"], f["database file"])
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
		_, text, _ := strings.Cut("\n"+string(page), "\n"+m.metric+" ")
		text, _, _ = strings.Cut(text, "\n")
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("metric %s: %w", m.metric, err)
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
