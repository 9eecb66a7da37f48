package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/test/bench/machine"
)

const (
	rowLarge       = "start, cold page cache"
	rowLargeCached = "every object is cached"
	rowLargeReady  = "anonymous memory when ready"
	rowLargeRest   = "anonymous memory at rest"
	rowLargePeak   = "peak RSS"
)

var largeLines = []line{
	{row: rowLarge, unit: "s"}, {row: rowLarge, unit: "CPU s"},
	{row: rowLargeCached, unit: "s"}, {row: rowLargeCached, unit: "CPU s"},
	{row: rowLargeReady, unit: "MB"},
	{row: rowLargeRest, unit: "MB"}, {row: rowLargeRest, unit: "CPU s"},
	{row: rowLargePeak, unit: "MB"},
}

// large is the command bench large.
func large(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	rows := []string{"start"}
	cmp, only := newComparison("large", 1, rows, stdout, stderr)
	objects := cmp.flags.Int("objects", 300000, "number of ConfigMaps of 1 KB in the store")
	settle := cmp.flags.Duration("settle", 30*time.Second, "how long after that memory is measured at rest")
	if err := cmp.parse(args, only, rows); err != nil {
		return err
	}
	if *objects < 1 || *objects > 10000000 || *settle < 0 {
		return fmt.Errorf("-objects is %d and -settle is %v, want 1 to 10000000 and at least 0", *objects, *settle)
	}
	cmp.Setting = fmt.Sprintf("%d ConfigMaps of 1 KB in the store, which was stopped in order; no page of its files is in the page cache; at rest is %v later", *objects, *settle)
	cmp.lines = largeLines
	cmp.notes = "start: from the start of the first process until /readyz is ok. cached: until the API server's cache of ConfigMaps answers.\n" +
		"peak: of the sum of the processes' own peaks, until rest. etcd + kube-apiserver have no controllers, which cache objects too.\n"
	return cmp.run(ctx, func(ctx context.Context, p *peer, dir string, s *sample) error {
		return cmp.measureLarge(ctx, p, dir, s, *objects, *settle)
	})
}

// namespaceOfLarge has the objects.
const namespaceOfLarge = "bench-large"

func (cmp *comparison) measureLarge(ctx context.Context, p *peer, dir string, s *sample, objects int, settle time.Duration) error {
	if err := p.prepareLarge(ctx, dir, objects); err != nil {
		return err
	}
	if err := evict(dir); err != nil {
		return err
	}
	c, probe, err := p.startReady(ctx, dir)
	if err != nil {
		return err
	}
	defer c.kill()
	defer probe.close()
	passed := func(row string) error {
		s.add(row, "s", time.Since(c.began).Seconds())
		cpu, err := c.cpu()
		s.add(row, "CPU s", cpu.Seconds())
		return err
	}
	memory := func(row string, read func(pid int) (int64, error)) error {
		parts, err := c.each(read)
		s.add(row, "MB", megabytes(parts)...)
		return err
	}
	if err := errors.Join(passed(rowLarge), memory(rowLargeReady, machine.AnonymousMemory)); err != nil {
		return err
	}
	if err := probe.await(ctx, lastOfLarge(objects)); err != nil {
		return err
	}
	if err := passed(rowLargeCached); err != nil {
		return err
	}
	probe.close()
	if err := pause(ctx, settle); err != nil {
		return err
	}
	cpu, err := c.cpu()
	if err != nil {
		return err
	}
	s.add(rowLargeRest, "CPU s", cpu.Seconds())
	if err := errors.Join(memory(rowLargeRest, machine.AnonymousMemory), memory(rowLargePeak, machine.PeakMemory)); err != nil {
		return err
	}
	cmp.progress(p, s, 0)
	_, err = c.stop(ctx)
	return err
}

func nameOfLarge(i int) string { return fmt.Sprintf("object-%07d", i) }

// lastOfLarge is a path of the API that is answered as soon as the API server's cache has all objects.
func lastOfLarge(objects int) string {
	return "/api/v1/namespaces/" + namespaceOfLarge + "/configmaps?resourceVersion=0&fieldSelector=metadata.name%3D" + nameOfLarge(objects-1)
}

// prepareLarge makes a cluster with the objects, and stops it.
func (p *peer) prepareLarge(ctx context.Context, dir string, objects int) error {
	c, probe, err := p.startReady(ctx, dir)
	if err != nil {
		return err
	}
	defer c.kill()
	defer probe.close()
	body := []byte(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"` + namespaceOfLarge + `"}}`)
	if _, err := probe.do(ctx, http.MethodPost, "/api/v1/namespaces", body); err != nil {
		return err
	}
	probe.close()
	if c.etcd != "" {
		if err := c.daemons[1].stop(ctx); err != nil {
			return err
		}
		if err := fillEtcd(ctx, c.etcd, objects); err != nil {
			return fmt.Errorf("fill etcd: %w", err)
		}
		return c.daemons[0].stop(ctx)
	}
	if _, err := c.stop(ctx); err != nil {
		return err
	}
	if err := fillEngine(ctx, dir, objects); err != nil {
		return fmt.Errorf("fill the datastore: %w", err)
	}
	return nil
}

// together is the number of objects that are written in one transaction: below etcd's limits.
const together = 100

// fillEngine writes the objects into the datastore of a stopped Karve, through its engine.
func fillEngine(ctx context.Context, dir string, objects int) error {
	lock, err := directory.Acquire(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	engine, err := datastore.OpenEngine(lock, datastore.Options{})
	if err != nil {
		return err
	}
	err = eachBatch(objects, func(keys []string, values [][]byte) error {
		var ops []datastore.Op
		for i, key := range keys {
			ops = append(ops, datastore.Op{Put: &datastore.PutRequest{Key: key, Value: values[i]}})
		}
		_, err := engine.Txn(ctx, datastore.TxnRequest{Then: ops})
		return err
	})
	return errors.Join(err, engine.Close())
}

// fillEtcd writes the objects into an etcd.
func fillEtcd(ctx context.Context, endpoint string, objects int) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: startTimeout, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	return eachBatch(objects, func(keys []string, values [][]byte) error {
		var ops []clientv3.Op
		for i, key := range keys {
			ops = append(ops, clientv3.OpPut(key, string(values[i])))
		}
		_, err := client.Txn(ctx).Then(ops...).Commit()
		return err
	})
}

// eachBatch calls write with keys and values, as kube-apiserver stores ConfigMaps, until there
// were enough.
func eachBatch(objects int, write func(keys []string, values [][]byte) error) error {
	codec := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	random := rand.New(rand.NewPCG(1, 2))
	created := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	for from := 0; from < objects; from += together {
		var keys []string
		var values [][]byte
		for i := from; i < min(from+together, objects); i++ {
			text := make([]byte, valueBytes)
			for k := range text {
				text[k] = 'a' + byte(random.IntN(26))
			}
			cm := &corev1.ConfigMap{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
				ObjectMeta: metav1.ObjectMeta{
					Namespace: namespaceOfLarge, Name: nameOfLarge(i), CreationTimestamp: created,
					UID: types.UID(fmt.Sprintf("%08x-0000-4000-8000-%012x", i, random.Uint64()>>16)),
					ManagedFields: []metav1.ManagedFieldsEntry{{
						Manager: "bench", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &created,
						FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:data":{".":{},"f:text":{}}}`),
					}},
				},
				Data: map[string]string{"text": string(text)},
			}
			var value bytes.Buffer
			if err := codec.Encode(cm, &value); err != nil {
				return err
			}
			keys = append(keys, "/registry/configmaps/"+namespaceOfLarge+"/"+cm.Name)
			values = append(values, value.Bytes())
		}
		if err := write(keys, values); err != nil {
			return err
		}
	}
	return nil
}

// evict takes the files of a directory out of the page cache.
func evict(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Sync(); err != nil { // a page that is not on the disk stays
			return err
		}
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return fmt.Errorf("evict %s from the page cache: %w", path, err)
		}
		return nil
	})
}
