package etcdapi

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/datastore"
)

func TestErrorsAreStatuses(t *testing.T) {
	for in, want := range map[error]error{
		fmt.Errorf("put: %w", datastore.ErrNoSpace): rpctypes.ErrGRPCNoSpace,
		fmt.Errorf("get: %w", context.Canceled):     context.Canceled,
	} {
		if got := Status(in); !errors.Is(got, want) {
			t.Errorf("%v: got %v, want %v", in, got, want)
		}
	}
	for in, want := range map[error]codes.Code{
		datastore.ErrNoSpace: codes.ResourceExhausted, datastore.ErrUnknownOutcome: codes.Unavailable,
		datastore.ErrClosed: codes.Unavailable, datastore.ErrCorrupt: codes.DataLoss, errors.New("?"): codes.Internal,
	} {
		if got := status.Code(Status(fmt.Errorf("x: %w", in))); got != want {
			t.Errorf("%v: got %v, want %v", in, got, want)
		}
	}
}
