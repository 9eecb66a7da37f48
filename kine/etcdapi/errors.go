package etcdapi

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/datastore"
)

// statuses are the engine's errors in etcd's words. etcd's clients compare them by
// text, so the detail of the engine's error is left out.
var statuses = []struct{ engine, etcd error }{
	{datastore.ErrCompacted, rpctypes.ErrGRPCCompacted},
	{datastore.ErrFutureRevision, rpctypes.ErrGRPCFutureRev},
	{datastore.ErrNoSpace, rpctypes.ErrGRPCNoSpace},
	{datastore.ErrEmptyKey, rpctypes.ErrGRPCEmptyKey},
	{datastore.ErrKeyNotFound, rpctypes.ErrGRPCKeyNotFound},
	{datastore.ErrDuplicateKey, rpctypes.ErrGRPCDuplicateKey},
	{datastore.ErrTooManyChanges, rpctypes.ErrGRPCTooManyOps},
	{datastore.ErrLeaseNotFound, rpctypes.ErrGRPCLeaseNotFound},
	{datastore.ErrLeaseExists, rpctypes.ErrGRPCLeaseExist},
}

// Status turns an error of the engine into what an etcd client understands. An end
// of the engine is Unavailable, an outcome nobody knows too: the client must look
// before it tries again. Never is a failure a conflict. nil and the context's
// errors stay what they are.
func Status(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	for _, s := range statuses {
		if errors.Is(err, s.engine) {
			return s.etcd
		}
	}
	switch {
	case errors.Is(err, datastore.ErrUnknownOutcome), errors.Is(err, datastore.ErrClosed):
		return status.Error(codes.Unavailable, err.Error())
	case errors.Is(err, datastore.ErrCorrupt):
		return status.Error(codes.DataLoss, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}
