package external

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/karve-k8s/karve/kine/inprocess"
)

// BenchmarkDatabase measures one client of each database that scripts/external-databases has
// started: scripts/external-databases with KARVE_TEST_FLAGS='-bench .'.
func BenchmarkDatabase(b *testing.B) {
	for _, kind := range []string{"postgres", "mysql"} {
		endpoint := os.Getenv("KARVE_TEST_" + strings.ToUpper(kind))
		if endpoint == "" {
			continue
		}
		own := fmt.Sprintf("bench%d", time.Now().UnixNano())
		d, err := Parse(endpoint + own)
		if err != nil {
			b.Fatal(err)
		}
		backend, err := d.Open(b.Context(), Options{})
		if err != nil {
			b.Fatal(err)
		}
		served, err := Serve(b.Context(), backend)
		if err != nil {
			b.Fatal(err)
		}
		client, err := inprocess.NewClient(served.URL())
		if err != nil {
			b.Fatal(err)
		}
		k, value, n := client.Kubernetes, make([]byte, 2000), 0
		b.Run(kind+"/create", func(b *testing.B) {
			for b.Loop() {
				n++
				if r, err := k.OptimisticPut(b.Context(), fmt.Sprintf("/many/%d", n), value, 0, kubernetes.PutOptions{}); err != nil || !r.Succeeded {
					b.Fatal(r, err)
				}
			}
		})
		b.Run(kind+"/update", func(b *testing.B) {
			one, err := k.OptimisticPut(b.Context(), fmt.Sprintf("/one/%d", n), value, 0, kubernetes.PutOptions{})
			if err != nil || !one.Succeeded {
				b.Fatal(one, err)
			}
			for n++; b.Loop(); {
				if one, err = k.OptimisticPut(b.Context(), fmt.Sprintf("/one/%d", n-1), value, one.Revision, kubernetes.PutOptions{}); err != nil || !one.Succeeded {
					b.Fatal(one, err)
				}
			}
		})
		for i := range 1000 {
			if _, err := k.OptimisticPut(b.Context(), fmt.Sprintf("/list/%d", i), value, 0, kubernetes.PutOptions{}); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(kind+"/list1000", func(b *testing.B) {
			for b.Loop() {
				if r, err := k.List(b.Context(), "/list/", kubernetes.ListOptions{}); err != nil || len(r.Kvs) != 1000 {
					b.Fatal(len(r.Kvs), err)
				}
			}
		})
		b.Run(kind+"/list1", func(b *testing.B) {
			for b.Loop() {
				if r, err := k.List(b.Context(), "/list/999", kubernetes.ListOptions{}); err != nil || len(r.Kvs) != 1 {
					b.Fatal(len(r.Kvs), err)
				}
			}
		})
		b.Run(kind+"/page500", func(b *testing.B) {
			for b.Loop() {
				if r, err := k.List(b.Context(), "/list/", kubernetes.ListOptions{Limit: 500}); err != nil || len(r.Kvs) != 500 {
					b.Fatal(len(r.Kvs), err)
				}
			}
		})
		b.Run(kind+"/get", func(b *testing.B) {
			for b.Loop() {
				if r, err := k.Get(b.Context(), "/list/1", kubernetes.GetOptions{}); err != nil || r.KV == nil {
					b.Fatal(r, err)
				}
			}
		})
		b.Run(kind+"/get32", func(b *testing.B) { // by 32 clients
			b.SetParallelism(max(1, 32/runtime.GOMAXPROCS(0)))
			b.RunParallel(func(pb *testing.PB) {
				for n := 0; pb.Next(); n++ {
					if r, err := k.Get(b.Context(), fmt.Sprintf("/list/%d", n%1000), kubernetes.GetOptions{}); err != nil || r.KV == nil {
						b.Error(r, err)
						return
					}
				}
			})
		})
		b.Run(kind+"/nothing", func(b *testing.B) {
			for b.Loop() {
				if r, err := k.Get(b.Context(), "/list/", kubernetes.GetOptions{}); err != nil || r.KV != nil {
					b.Fatal(r, err)
				}
			}
		})
		client.Close()
		served.Close()
		backend.Close()
	}
}
