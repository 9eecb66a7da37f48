package inprocess

import (
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestFieldsOfTheClient(t *testing.T) {
	var last clientv3.RangeStreamResponse
	setField(&last, "closeErr", rpctypes.ErrUnhealthy)
	if got := last.Err(); got != rpctypes.ErrUnhealthy {
		t.Errorf("the error of a stream's end is %v, want %v", got, rpctypes.ErrUnhealthy)
	}
	client := clientv3.NewCtxClient(t.Context())
	setField(client, "endpoints", []string{"karve://1"})
	if got := client.Endpoints(); len(got) != 1 || got[0] != "karve://1" {
		t.Errorf("the endpoints are %q, want karve://1", got)
	}
}
