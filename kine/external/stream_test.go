package external

import (
	"context"
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/kine/inprocess"
)

// A driver whose reader stops in the middle of a list keeps the connection. There are openConns.
func TestReadersThatStopHoldNoConnection(t *testing.T) {
	rows := make([]row, 1000)
	for i := range rows {
		rows[i] = row{int64(i + 2), fmt.Sprintf("/a/%03d", i), false}
	}
	served, err := Serve(t.Context(), kineOn(t, &table{newest: 2000, rows: rows}))
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	client, err := inprocess.NewClient(served.URL())
	if err != nil {
		t.Fatal(err)
	}
	for i := range openConns + 1 {
		begun := make(chan error)
		go func() {
			list, err := client.KV.GetStream(context.Background(), "/a/", clientv3.WithPrefix())
			if err == nil {
				first := <-list
				err = first.Err()
			}
			begun <- err
		}()
		if err := eventually.Receive(t, fmt.Sprintf("list %d", i), begun); err != nil {
			t.Fatalf("list %d: %v", i, err)
		}
	}
}
