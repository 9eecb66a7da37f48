package inprocess

import (
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestFieldsOfTheClient(t *testing.T) {
	op := clientv3.OpGet("/a", clientv3.WithPrevKV(), clientv3.WithProgressNotify(), clientv3.WithCreatedNotify(), clientv3.WithFilterPut(), clientv3.WithFilterDelete())
	for _, name := range []string{"prevKV", "progressNotify", "createdNotify", "filterPut", "filterDelete"} {
		if !flag(op, name) {
			t.Errorf("%s is not what its option sets", name)
		}
	}
	resp := clientv3.WatchResponse{Canceled: true}
	setField(&resp, "cancelReason", rpctypes.ErrorDesc(rpctypes.ErrGRPCUnhealthy))
	if got := resp.Err(); got == nil || got.Error() != rpctypes.ErrUnhealthy.Error() {
		t.Errorf("the reason of a watch's end is %v, want %v", got, rpctypes.ErrUnhealthy)
	}
}
