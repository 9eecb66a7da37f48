package inprocess_test

import (
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/kine/inprocess"
)

// BenchmarkLists measures the two ways in which the API server reads a list.
func BenchmarkLists(b *testing.B) {
	e := memory(b)
	shim, err := kine.Serve(b.Context(), e, "")
	if err != nil {
		b.Fatal(err)
	}
	defer shim.Close()
	c, err := inprocess.NewClient(shim.LocalEndpoint())
	if err != nil {
		b.Fatal(err)
	}
	value := string(make([]byte, 1500))
	for _, n := range []int{0, 1, 50, 5000} {
		prefix := fmt.Sprintf("/%d/", n)
		for i := range n {
			must(b, e, fmt.Sprintf("%s%05d", prefix, i), value)
		}
		b.Run(fmt.Sprintf("whole/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if r, err := c.Kubernetes.List(b.Context(), prefix, kubernetes.ListOptions{}); err != nil || len(r.Kvs) != n {
					b.Fatal(len(r.Kvs), err)
				}
			}
		})
		b.Run(fmt.Sprintf("chunks/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				stream, err := c.GetStream(b.Context(), prefix, clientv3.WithPrefix())
				if err != nil {
					b.Fatal(err)
				}
				got := 0
				for r := range stream {
					if err := r.Err(); err != nil {
						b.Fatal(err)
					}
					got += len(r.Kvs)
				}
				if got != n {
					b.Fatal(got)
				}
			}
		})
	}
}
