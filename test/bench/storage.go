package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"

	"github.com/karve-k8s/karve/test/bench/load"
)

// storage is the command bench storage: Karve's datastore beside etcd, each on a unix socket.
func storage(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	cmp := newComparison("storage", 3, []string{"create", "update", "get", "list", "count", "watch", "delete"}, stdout, stderr)
	quick := cmp.flags.Bool("quick", false, "a few of each operation, to see that it works: the figures mean little")
	if err := cmp.parse(args); err != nil {
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
	cmp.setting = fmt.Sprintf("%d keys of %d bytes; etcd API on a unix socket; karve is its program etcd (karve envtest-assets), with the defaults of a server", plan.keys, valueBytes)
	cmp.notes = "server-, client-CPU: of one operation.\n"
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
	// One connection, as Karve's API server has it, and upstream's for most resources. Errors are returned as well.
	client, err := kubernetes.New(clientv3.Config{Endpoints: []string{c.etcd}, DialTimeout: startTimeout, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("connect to %s: %w", c.etcd, err)
	}
	defer client.Close()
	if err := c.poll(ctx, func() error { // which also waits for the connection
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := client.Count(ctx, keyPrefix, kubernetes.CountOptions{})
		return err
	}); err != nil {
		return err
	}
	b := newStorageBench(bench{cmp, c, p, s, nil}, client, plan)
	for _, row := range storageRows {
		if row.only != "create" && !cmp.wants(row.only) {
			continue
		}
		if err := b.row(ctx, row.row, func(ctx context.Context) (load.Result, error) { return row.run(b, ctx) }); err != nil {
			return err
		}
	}
	_, err = c.stop(ctx)
	return err
}
