package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/karve-k8s/karve/test/bench/load"
	"github.com/karve-k8s/karve/test/bench/machine"
)

// perBoth is the CPU time of an operation, of the server and its client together.
const perBoth = "CPU us"

// A storageRow measures one operation of the etcd API.
type storageRow struct {
	only, row string
	run       func(*storageBench, context.Context) (load.Result, error)
}

// storageRows are in the order of the measurement, which is part of the benchmark: when keys are
// read, they have a history, as in a cluster that has run for a while.
var storageRows = []storageRow{
	{"create", "create, 16 clients", (*storageBench).create},
	{"update", "update, 1 client", update(1, 4000)},
	{"update", "update, 16 clients", update(16, 20000)},
	{"update", "update, 64 clients", update(64, 30000)},
	{"get", "get, 16 clients", (*storageBench).get},
	{"list", "list 150 keys, 4 clients", (*storageBench).list},
	{"list", "list page of 500, 4 clients", (*storageBench).page},
	{"list", "list with limit 1, 4 clients", (*storageBench).first},
	{"count", "count, 4 clients", (*storageBench).count},
	{"watch", "put to watch", fanOut(1, 1000, 1)},
	{"watch", "fan-out, 50 watchers", fanOut(50, 200, watchStreams)},
	{"watch", "fan-out, 50 on one stream", fanOut(50, 200, 1)},
	{"watch", "fan-out, 500 watchers", fanOut(500, 60, watchStreams)},
	{"delete", "delete, 16 clients", (*storageBench).remove},
}

func storageLines() (lines []line) {
	for _, r := range storageRows {
		for _, unit := range []string{"/s", "p50 ms", "p99 ms", perBoth} {
			lines = append(lines, line{row: r.row, unit: unit})
		}
	}
	return lines
}

// storage is the command bench storage: Karve's datastore beside etcd, each on a unix socket.
func storage(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var rows []string
	for _, r := range storageRows {
		rows = append(rows, r.only)
	}
	rows = slices.Compact(rows)
	cmp, only := newComparison("storage", 3, rows, stdout, stderr)
	quick := cmp.flags.Bool("quick", false, "a few of each operation, to see that it works: the figures mean little")
	if err := cmp.parse(args, only, rows); err != nil {
		return err
	}
	if err := cmp.refuse("upstream"); err != nil {
		return err
	}
	plan := storagePlan{keys: 3000, part: 1, most: 3 * time.Second}
	if *quick {
		plan = storagePlan{keys: 1200, part: 5, most: 500 * time.Millisecond}
	}
	cmp.storage = true
	cmp.Setting = fmt.Sprintf("%d keys of %d bytes; etcd API on a unix socket; karve is its program etcd (karve envtest-assets), with the defaults of a server", plan.keys, valueBytes)
	cmp.lines = storageLines()
	cmp.notes = "CPU us: of one operation, for the server and its client together.\n"
	return cmp.run(ctx, func(ctx context.Context, p *peer, dir string, s *sample) error {
		return cmp.measureStorage(ctx, p, dir, s, plan)
	})
}

// etcdProgram is a program that takes etcd's options, on a socket.
func etcdProgram(title, name, binary string) *peer {
	return &peer{title: title, name: name, version: karveVersion(binary), binaries: []string{binary}, launch: func(_ context.Context, dir string, c *cluster) error {
		program := filepath.Join(dir, "etcd") // Karve is etcd by this name
		if err := os.Symlink(binary, program); err != nil {
			return err
		}
		ports, err := freePorts(1)
		if err != nil {
			return err
		}
		c.began, c.etcd = time.Now(), "unix://"+filepath.Join(dir, "s")
		return c.launchEtcd(program, dir, ports[0])
	}}
}

func (cmp *comparison) measureStorage(ctx context.Context, p *peer, dir string, s *sample, plan storagePlan) error {
	c := &cluster{}
	defer c.kill()
	if err := p.launch(ctx, dir, c); err != nil {
		return err
	}
	r, err := dial(c.etcd)
	if err != nil {
		return err
	}
	defer r.client.Close()
	if err := c.poll(ctx, func() error { // which also waits for the connection
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := r.count(ctx, keyPrefix)
		return err
	}); err != nil {
		return err
	}
	b := newStorageBench(r, plan)
	cpu := func() (time.Duration, error) {
		server, err := c.cpu()
		if err != nil {
			return 0, err
		}
		client, err := machine.CPUTime(machine.OwnPID)
		return server + client, err
	}
	for _, row := range storageRows {
		if row.only != "create" && !cmp.wants(row.only) {
			continue
		}
		if row.only == "delete" {
			if err := r.compact(ctx); err != nil {
				return fmt.Errorf("compact: %w", err)
			}
		}
		from := len(s.Figures)
		before, err := cpu()
		if err != nil {
			return err
		}
		res, err := row.run(b, ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", row.row, err)
		}
		after, err := cpu()
		if err != nil {
			return err
		}
		s.add(row.row, "/s", res.PerSecond)
		s.add(row.row, "p50 ms", res.P50)
		s.add(row.row, "p99 ms", res.P99)
		s.add(row.row, perBoth, float64((after-before).Microseconds())/float64(max(1, res.Ops)))
		cmp.progress(p, s, from)
	}
	_, err = c.stop(ctx)
	return err
}
