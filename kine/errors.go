package kine

import (
	"context"
	"errors"

	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/datastore"
)

// statuses are the engine's errors in etcd's words. The bridge compares some of
// them with ==, and etcd's clients all of them by text, so the detail of the
// engine's error is left out.
var statuses = []struct{ engine, etcd error }{
	{datastore.ErrCompacted, server.ErrCompacted},
	{datastore.ErrFutureRevision, server.ErrFutureRev},
	{datastore.ErrNoSpace, rpctypes.ErrGRPCNoSpace},
	{datastore.ErrEmptyKey, rpctypes.ErrGRPCEmptyKey},
	{datastore.ErrLeaseNotFound, rpctypes.ErrGRPCLeaseNotFound},
	{datastore.ErrLeaseExists, rpctypes.ErrGRPCLeaseExist},
}

// toStatus turns an error of the engine into what an etcd client understands.
// An end of the engine is Unavailable, an outcome nobody knows too: the client
// must look before it tries again. Never is a failure a conflict.
func toStatus(err error) error {
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
