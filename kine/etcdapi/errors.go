package etcdapi

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/datastore"
)

// statuses maps the engine's errors to etcd's. etcd's clients compare errors by text, so the
// details of the engine's error are left out.
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

// Status turns an error of the engine into one that etcd's clients understand. A closed engine
// and an unknown outcome are Unavailable: the client must read before it tries again. No
// failure becomes a conflict. Status returns nil and the errors of contexts unchanged.
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
	case errors.Is(err, datastore.ErrTakenBack): // it is no failure of the datastore
		return status.Error(codes.Canceled, err.Error())
	case errors.Is(err, datastore.ErrUnknownOutcome), errors.Is(err, datastore.ErrClosed):
		return status.Error(codes.Unavailable, err.Error())
	case errors.Is(err, datastore.ErrCorrupt):
		return status.Error(codes.DataLoss, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}
