package storage

import (
	"context"
	"errors"

	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/karve-k8s/karve/kine/external"
	"github.com/karve-k8s/karve/kine/location"
	"github.com/karve-k8s/karve/server/lifecycle"
)

// useExternal serves the user's database. While the database does not answer, requests fail. The
// part ends only if kine gives up.
func (s *Storage) useExternal(ctx context.Context, ready func()) (err error) {
	where := s.config.Location.External
	var backend *external.Backend
	wait := waiting{location.Option, where.String(), s.config.Log, s.config.Status}
	err = wait.until(ctx, func(ctx context.Context) (err error) {
		backend, err = where.Open(ctx, external.Options{
			CAFile: s.config.CAFile, CertFile: s.config.CertFile, KeyFile: s.config.KeyFile,
			Metrics: legacyregistry.Registerer(), State: s.externalState,
			Warn: func(err error) { s.config.Log.Warn(err) },
		})
		return err
	})
	if err != nil {
		return err
	}
	defer backend.Close()
	shim, err := external.Serve(ctx, backend, s.config.DataDir, s.listeners()...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shim.Close()) }() // before the backend
	endpoint := s.config.endpointOf(shim)
	s.connection = Connection{Endpoints: []string{endpoint}, Store: databaseStore{backend, endpoint}}
	if err := s.answers(ctx, shim); err != nil {
		return err
	}
	ready()
	select {
	case <-ctx.Done():
		return nil
	case err := <-shim.Failed():
		lifecycle.Failed(ctx, err)
	}
	<-ctx.Done()
	return nil
}

func (s *Storage) externalState(err error) {
	if err != nil {
		s.config.Log.Error(err)
		return
	}
	s.config.Log.Info("the datastore answers again")
}
