package apiserver

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// storedPage is how many objects one request returns if the datastore has no streams. It is that of
// upstream's watch cache (storageWatchListPageSize). Databases sort all objects that are left
// for each page.
const storedPage = 10_000

// readStored adds all objects below prefix to stored, in the order of their keys, in one pass. An etcd
// before 3.7 has no streams and returns pages. With an error, readStored returns the last key that it
// has added.
func readStored(ctx context.Context, client *kubernetes.Client, prefix string, stored *storedVersions) (last string, err error) {
	add := func(kvs []*mvccpb.KeyValue) {
		for _, kv := range kvs {
			last = string(kv.Key)
			stored.add(strings.TrimPrefix(last, prefix), kv.Value)
		}
	}
	err = streamStored(ctx, client, prefix, add)
	if status.Code(err) == codes.Unimplemented && last == "" {
		err = pageStored(ctx, client, prefix, add)
	}
	return last, err
}

func streamStored(ctx context.Context, client *kubernetes.Client, prefix string, add func([]*mvccpb.KeyValue)) error {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := client.KV.GetStream(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		cancel()
		return err
	}
	defer func() {
		cancel()
		go func() { // the client's goroutine ends when its last chunk has been taken
			for range stream {
			}
		}()
	}()
	for whole := false; ; {
		select {
		case chunk, ok := <-stream:
			switch {
			case ok && chunk.Err() != nil:
				return chunk.Err()
			case ok:
				add(chunk.Kvs)
				whole = chunk.Header != nil // which only the last chunk has
			case !whole:
				return cmp.Or(ctx.Err(), errors.New("the stream of objects ended before the last one"))
			default:
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func pageStored(ctx context.Context, client *kubernetes.Client, prefix string, add func([]*mvccpb.KeyValue)) error {
	for from, end := prefix, clientv3.GetPrefixRangeEnd(prefix); ; {
		page, err := client.KV.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(storedPage))
		if err != nil {
			return err
		}
		add(page.Kvs)
		if !page.More {
			return nil
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}
